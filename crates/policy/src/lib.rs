//! Candidates in, choice out: the routing policies, without clocks, I/O or global randomness.
//!
//! In reading order:
//! - `fleet`: what a policy sees of the workers, as a trait.
//! - `settings`: which policy, and its knobs.
//! - `key`: what a request is recognised by: the chained hashes of its prompt, or one hash.
//! - `ratio`: how many bytes of prompt are a token, learnt from what workers count.
//! - `choice`: what is asked, what is answered, and why.
//! - `draws`: seeded randomness; `groups`: ranks that step together.
//! - `round_robin`, `random`, `power_of_two`, `least_loaded`, `consistent_hash`, `cache_aware`: one policy each.
//! - `policy`: all of them behind one lock.

mod fleet;
mod settings;

mod key;
mod ratio;

mod choice;
mod draws;
mod groups;

mod cache_aware;
mod consistent_hash;
mod least_loaded;
mod power_of_two;
mod random;
mod round_robin;

mod policy;

#[cfg(test)]
mod testing;

pub use choice::{Ask, Choice, Decision, Reason};
pub use fleet::{Fleet, Slot};
pub use key::{BLOCK_BYTES, HashKey, HashKeyKind, PrefixKey, PrefixKeyBuilder};
pub use policy::Policy;
pub use settings::{
    CacheAwareSettings, LoadKind, MIN_TREE_BYTES, MOST_GROUP_WEIGHT, PolicyKind, PolicySettings,
    SettingsError,
};

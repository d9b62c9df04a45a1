//! LMCache: the prefill worker writes the blocks to a receiver of the decode worker, of which its order tells, and makes the
//! first token, which the client gets from the router. The decode worker goes on behind it, with token ids in and a
//! completion out, whatever the client's dialect.
//!
//! - [`receiver`]: where decode workers take in blocks
//! - [`wish`]: what of a request matters here, and which requests the first token would not be right for
//! - [`tokens`]: the prompt as ids
//! - [`legs`]: the bodies of both legs
//! - [`first`]: the first token
//! - [`continuation`]: the rest of the answer, behind it

pub mod continuation;

pub mod first;

pub mod legs;

pub mod receiver;

pub mod tokens;

pub mod wish;

mod messages;

pub use continuation::Continuation;
pub use first::First;
pub use receiver::{Receiver, RegistryError, is_host, registry};
pub use tokens::Tokens;
pub use wish::Wish;

/// Where both legs go, whatever the client asked for.
pub const LEG_PATH: &str = "/v1/completions";

/// Where a prompt becomes ids.
pub const TOKENIZE_PATH: &str = "/tokenize";

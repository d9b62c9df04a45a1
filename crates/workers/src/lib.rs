//! What is known of each worker: who it is, whether it may be chosen, what it serves, what it is doing.
//!
//! Reading order:
//! - [`url`]: how a worker is addressed.
//! - [`ranks`]: the data-parallel ranks behind one, as numbers.
//! - [`worker`]: one worker, its state and its counters; [`worker::host`]: one URL, and what all workers behind it share.
//! - [`blocker`]: why a worker may not be chosen.
//! - [`guard`]: the load of one leg, which comes down by drop and in no other way.
//! - [`breaker`]: verdicts on answers in, may it be chosen out.
//! - `circuit`: a breaker behind its lock.
//! - [`places`]: how many legs a worker may have, and who waits for a place.
//! - [`signals`]: by which id a worker has handed over, and who waits for that.
//! - `pending`: what a worker has yet to prefill, and how fast it is.
//! - [`prediction`]: what was predicted of its prefix cache, and what it said about it.
//! - [`health`]: probe results in, state out.
//! - [`blame`]: whose fault an error of a socket is.
//! - `role`: what a worker is for.
//! - [`served`]: what a worker says it serves.
//! - [`note`], [`ledger`], `frozen`: the record of decisions, for whoever writes it down.
//! - [`tried`]: whom one request has tried.
//! - [`by`]: ranks or URLs, and why there is no pool.
//! - [`pool`]: the workers of one model, and a choice among them; [`pools`]: all of them by name.
//! - [`world`]: the immutable view that a request is routed by: epoch, pools, policies.
//! - `state`: what only writers see.
//! - [`registry`]: the two handles on it all, one that reads and one that writes.
//! - [`audit`]: what must hold whatever happens, and the check that no load has drifted.
//! - [`collector`]: the per-worker series, computed when they are scraped.
//!
//! Architecture invariant: no sockets and no clock in here. Time is an argument, and whoever talks to a worker
//! does it elsewhere.

pub mod audit;
pub mod blame;
pub mod blocker;
pub mod breaker;
pub mod by;
mod circuit;
pub mod collector;
mod frozen;
pub mod guard;
pub mod health;
pub mod ledger;
pub mod note;
mod pending;
pub mod places;
pub mod pool;
pub mod pools;
pub mod prediction;
pub mod ranks;
pub mod registry;
mod role;
pub mod served;
pub mod signals;
mod state;
pub mod tried;
pub mod url;
pub mod worker;
pub mod world;

pub use audit::{Auditor, Invariant};
pub use blocker::{Blocker, Rest};
pub use breaker::{BreakerSettings, BreakerState};
pub use by::{By, PoolError};
pub use collector::FleetCollector;
pub use guard::Guard;
pub use health::HealthSettings;
pub use ledger::Ledger;
pub use note::{Asker, Note};
pub use places::{Places, Ticket};
pub use pool::{Pool, Selected};
pub use prediction::{Checked, Predictions};
pub use ranks::Ranks;
pub use registry::{Reader, Writer, registry};
pub use role::Role;
pub use served::{Models, ServedModel};
pub use signals::{Awaited, PairSignals, Signalled};
pub use state::Parts;
pub use tried::Tried;
pub use url::{UrlError, WorkerUrl};
pub use worker::Worker;
pub use worker::host::Host;
pub use world::{Changes, World};

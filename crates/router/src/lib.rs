//! The life of one request, one file per stage, in the order in which a request meets them.
//!
//! - [`router`]: the path itself, on one screen.
//! - `call`: a request whose route is known, and its two ends.
//! - [`route`]: what a method and a path are.
//! - `admission`: how many at once, and who waits.
//! - `line`: who waits for a place at a worker.
//! - [`authority`]: who may do what changes something.
//! - `waits`: what a request waits for before it has a worker.
//! - `reading`: its body read, as far as its route has to know it.
//! - [`classify`]: what it asks for, what must not pass taken out, the keys that policies choose by.
//! - `aliases`: other names of models, put right in requests and back in answers.
//! - `pick`: the pool that serves what it asks for.
//! - `call`: a request whose route is known, and how its answer becomes a response.
//! - [`forward`]: a choice with its load, and another one if that failed.
//! - `forwarded`: what that gives, and what it tells on the way.
//! - `incoming`: the body of a request, wherever it comes from; `upload`: one that goes on while it comes.
//! - `stored`: responses that one worker keeps: who has them, and all asked side by side.
//! - `attempt`: one exchange with one worker; `retry`: whether it is followed by another.
//! - `pair`: a prefill/decode pair by its plan; `course`: what it has been through; `chosen`: who gets its legs;
//!   `legs`: what they are sent; `prefill`, `decode`: one leg each; `heed`: what its refusal says; `disagg`: what is carried
//!   from one to the other if the first makes the first token; `pairs`: what outlives them.
//! - [`headers`]: what crosses from one side to the other.
//! - `refusals`: what a worker's refusal tells of the worker; `ranks`: how it says which data-parallel ranks it has.
//! - [`upstream`]: connections to workers.
//! - `leg`: a worker's load with what its answer will say of it.
//! - [`relay`]: the body on its way to the client; `records`: event streams in whole records; `patience`: how long it may
//!   take.
//! - `tunnel`: another protocol than HTTP, both ways.
//! - [`report`]: what the worker says of the prompt at the end of that body, against what was predicted.
//! - [`fanout`]: requests that concern whole workers.
//! - [`trial`]: what one trial came to, and the hold under which the next one begins; [`reset`]: that change of trials,
//!   `emptying`: workers' prefix caches before it.
//! - [`own`]: pages that the router answers itself.
//! - [`outcome`], [`failure`]: every way a request can end, and what the client is told.
//! - [`account`], `record`: the facts of a request, and the one place where they are closed at its end.
//! - `access_log`, `lines`: one line for each request, written by a thread of its own.
//! - [`metrics`], [`settings`], [`shard`], `clock`: what is counted, what can be set, what a data thread has to itself,
//!   what all of them share.
//!
//! Architecture invariant: a response in progress has neither a task nor a channel. Whoever polls the client's side
//! reads the worker's socket.

mod access_log;
pub mod account;
mod admission;
mod aliases;
mod attempt;
pub mod authority;
mod call;
mod chosen;
mod classify;
mod clock;
mod course;
mod decode;
mod disagg;
mod emptying;
pub mod failure;
mod fanout;
mod forward;
mod forwarded;
mod headers;
mod heed;
mod incoming;
mod leg;
mod legs;
mod line;
mod lines;
pub mod metrics;
pub mod outcome;
mod own;
mod pair;
mod pairs;
mod patience;
mod pick;
mod prefill;
mod ranks;
mod reading;
mod record;
mod records;
mod refusals;
pub mod relay;
mod report;
pub mod reset;
mod retry;
pub mod route;
pub mod router;
pub mod settings;
pub mod shard;
mod stored;
pub mod trial;
mod tunnel;
mod upload;
pub mod upstream;
mod waits;

pub use access_log::{AccessFormat, AccessLog};
pub use account::Account;
pub use admission::AdmissionSettings;
pub use aliases::Aliases;
pub use emptying::{Emptied, Said};
pub use headers::TRIAL_NAME_LIMIT;
pub use incoming::{BodyGone, Incoming};
pub use lines::Lines;
pub use metrics::RouterMetrics;
pub use pairs::{Inject, PairOutcome, PairSettings, Pairs};
pub use record::Books;
pub use relay::{ResponseBody, TwoWay};
pub use reset::{ResetDone, ResetOrder, ResetRefused};
pub use retry::RetrySettings;
pub use route::{Class, Route};
pub use router::{Begun, Router, Side};
pub use settings::{HASH_SOURCES, RouterSettings, Secret, TimeSettings, hash_source};
pub use shard::Shard;
pub use trial::{TrialSeries, TrialView, Trials, UnderWay};

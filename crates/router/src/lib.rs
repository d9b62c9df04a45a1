//! The life of one request, one file per stage, in the order in which a request meets them.
//!
//! - [`router`]: the path itself, on one screen.
//! - [`route`]: what a method and a path are.
//! - [`authority`]: who may do what changes something.
//! - [`classify`]: the body read, what must not pass taken out, the keys that policies choose by.
//! - [`forward`]: a choice with its load, an exchange, and another one if it failed.
//! - [`headers`]: what crosses from one side to the other.
//! - [`upstream`]: connections to workers.
//! - [`relay`]: the body on its way to the client.
//! - [`report`]: what the worker says of the prompt at the end of that body, against what was predicted.
//! - [`fanout`]: requests that concern whole workers.
//! - [`own`]: pages that the router answers itself.
//! - [`outcome`], [`failure`]: every way a request can end, and what the client is told.
//! - [`metrics`], [`settings`], [`shard`]: what is counted, what can be set, what a data thread has to itself.
//!
//! Architecture invariant: a response in progress has neither a task nor a channel. Whoever polls the client's side
//! reads the worker's socket.

pub mod authority;
mod classify;
pub mod failure;
mod fanout;
mod forward;
mod headers;
pub mod metrics;
pub mod outcome;
mod own;
pub mod relay;
mod report;
pub mod route;
pub mod router;
pub mod settings;
pub mod shard;
pub mod upstream;

pub use metrics::RouterMetrics;
pub use relay::ResponseBody;
pub use route::{Class, Route};
pub use router::{Begun, Router, Side};
pub use settings::{HASH_SOURCES, RouterSettings, Secret, hash_source};
pub use shard::Shard;

//! The application: command line, configuration, listeners, admin API. The only crate that knows of all the others.
//!
//! Reading order:
//! - [`command`], [`flags`], [`given`], [`config`], [`resolve`], `limits`, `lists`, `roles`, `lmcache`, `rules`: from what was
//!   typed and written to [`settings`].
//! - [`run`]: from settings to the end of the process.
//! - [`app`]: listeners, threads and tasks put together; [`data`]: the data threads; [`http1`]: their
//!   clients' connections; [`door`]: where requests come in; [`cors`]: whose pages may read answers; `fence`: numbers
//!   count what has been answered.
//! - [`decisions`]: the decision log.
//! - [`admin`]: resets, the list of workers, metrics; `metrics`: those that are registered once; `fleet`: changes of the list
//!   of workers, `familiar`: the same as vllm-router has them.
//! - [`startup`], [`events`], [`log`], [`signals`]: how the process speaks and is spoken to.
//! - [`demo`], [`simulate`]: simulated workers, with the router in front and alone.
//! - [`replay`]: a decision log once more, offline.

pub mod admin;
pub mod app;
pub mod command;
pub mod config;
pub mod cors;
pub mod data;
pub mod decisions;
pub mod demo;
pub mod door;
mod drain;
pub mod events;
mod familiar;
mod fence;
pub mod flags;
mod fleet;
pub mod given;
pub mod http1;
mod http2;
mod limits;
mod lists;
mod lmcache;
pub mod log;
mod metrics;
pub mod replay;
pub mod resolve;
mod roles;
mod roster;
mod rules;
pub mod run;
pub mod settings;
pub mod signals;
pub mod simulate;
pub mod startup;

pub use app::App;

//! Simulated vLLM workers: they speak the HTTP surface of vLLM over real sockets, keep a prefix cache, take the time that
//! an engine would take, record what they were sent, and misbehave on demand.
//!
//! In reading order: `options` (how a worker is set up), `worker` (its port and tasks), `serve` (one connection), `http`
//! (reading requests), `routes` and `request` (what was asked), `answers` (what is answered: `prompt` reads the body, `generation`
//! holds the tokens, `answer` is the result, `sse` its framing), `script` (an answer as steps on the wire, faults included),
//! `pairs` (what prefill and decode workers hand over, checked) with `exchange` (the ledger of it) and `notices` (how they say that
//! they have), `prebuilt` (ready-made answers for benches), `engine` and `cache` (the model of time and prefix reuse, without I/O), `ranks` (one engine for each), `state` (what a
//! worker is), `control` (the handle for tests) with `counters`, `record`, `faults` and `gates`, and `lock`.

mod answer;
mod answers;
mod cache;
mod control;
mod counters;
pub mod engine;
mod exchange;
mod faults;
mod gates;
mod generation;
mod http;
mod lock;
mod notices;
mod options;
mod pairs;
mod prebuilt;
mod prompt;
mod ranks;
mod record;
mod request;
mod routes;
mod script;
mod serve;
mod sse;
mod state;
mod worker;

pub use answers::expected_text;
pub use control::{Control, Listening};
pub use counters::Stats;
pub use exchange::Exchange;
pub use faults::{Fault, FaultRule, Scope, UnknownFault, When};
pub use gates::{HoldGate, Stage};
pub use notices::Speech;
pub use options::{Lora, Mode, WorkerOptions};
pub use pairs::{Handing, PairOptions, PairRole};
pub use record::Recorded;
pub use worker::Worker;

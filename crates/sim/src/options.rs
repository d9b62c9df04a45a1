//! How a simulated worker is set up. Plain data; nothing here acts.

use std::ops::Range;
use std::time::Duration;

use crate::engine::EngineOptions;
use crate::pairs::PairOptions;

/// How answers are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Answers made once at the start and sent as they are: bodies are not parsed, so the model name, limits and prompt of
    /// a request have no influence. For benches.
    Instant {
        /// Token chunks in a streamed answer, and words in a whole one.
        chunks: u32,
    },
    /// Answers made from the request, sent at once, and requests recorded. The engine keeps its prefix cache, so cached
    /// tokens are reported. For tests.
    Recording,
    /// Answers made from the request, sent when the engine model says so.
    Engine,
}

/// A LoRA adapter that is listed next to the base model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lora {
    /// Name that requests use as `model`.
    pub name: String,
    /// What the model list shows as `root`.
    pub path: String,
}

/// Everything about a simulated worker that is fixed at its start.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// Value of the response header `x-sim-worker`; `None` gives `sim-<port>`.
    pub id: Option<String>,
    /// Port on 127.0.0.1; 0 takes a free one.
    pub port: u16,
    /// How answers are made.
    pub mode: Mode,
    /// The simulated engine: its timing counts in `Mode::Engine` only, its cache in `Mode::Recording` too.
    pub engine: EngineOptions,
    /// Data-parallel ranks that share the port, each with an engine of its own.
    pub ranks: Range<u32>,
    /// What the `engine` label of the first rank says in metrics: its number among the ranks of all URLs, in modes where a
    /// URL has only some of them and counts those from 0.
    pub first_engine: u32,
    /// Time from one streamed chunk to the next in `Instant` and `Recording`; `None` sends a stream in one write.
    pub pace: Option<Duration>,
    /// Name of the base model.
    pub model: String,
    /// What the model list shows as `root` of the base model.
    pub root: String,
    /// Limit on prompt and output together, in tokens.
    pub max_model_len: u64,
    /// Adapters loaded from the start.
    pub loras: Vec<Lora>,
    /// Key asked for under `/v1`, `/v2` and `/inference`.
    pub api_key: Option<String>,
    /// Requests the recorder holds (the oldest go first); 0 switches it off.
    pub record: usize,
    /// Idle time after which a kept connection is closed; `None` keeps it for ever.
    pub keep_alive: Option<Duration>,
    /// Whether development routes exist.
    pub dev_mode: bool,
    /// Whether scale-out routes are enabled.
    pub scale_out: bool,
    /// Whether usage reports cached tokens.
    pub token_details: bool,
    /// What `/version` says.
    pub version: String,
    /// Its part in prefill/decode pairs; `None` answers everything alone.
    pub pair: Option<PairOptions>,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            id: None,
            port: 0,
            mode: Mode::Recording,
            engine: EngineOptions::default(),
            ranks: 0..1,
            first_engine: 0,
            pace: None,
            model: "tiny".to_owned(),
            root: "models/tiny-llama".to_owned(),
            max_model_len: 8192,
            loras: Vec::new(),
            api_key: None,
            record: 4096,
            keep_alive: Some(Duration::from_secs(5)),
            dev_mode: true,
            scale_out: true,
            token_details: true,
            version: "0.33.0".to_owned(),
            pair: None,
        }
    }
}

impl WorkerOptions {
    /// A worker for tests: answers depend on the request, come at once, and requests are recorded.
    #[must_use]
    pub fn recording() -> Self {
        Self::default()
    }

    /// A worker for benches: ready-made answers with `chunks` words, nothing recorded.
    #[must_use]
    pub fn instant(chunks: u32) -> Self {
        Self { mode: Mode::Instant { chunks }, record: 0, ..Self::default() }
    }

    /// A worker with the timing of the engine model, nothing recorded.
    #[must_use]
    pub fn engine(engine: EngineOptions) -> Self {
        Self { mode: Mode::Engine, engine, record: 0, ..Self::default() }
    }

    /// The same worker with so many data-parallel ranks.
    #[must_use]
    pub fn with_ranks(self, count: u32) -> Self {
        Self { ranks: 0..count, ..self }
    }

    /// The same worker under a name of its own.
    #[must_use]
    pub fn named(self, id: impl Into<String>) -> Self {
        Self { id: Some(id.into()), ..self }
    }
}

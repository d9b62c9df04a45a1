//! The decision log: one JSON line for each choice of a worker, and for each event that changes what choices depend on.
//!
//! In reading order: `line` (what a line looks like), `chain` (keys that do not repeat what earlier lines hold), `writer`
//! (from notes to the file), `reader` (from the file to lines).

mod chain;
pub(crate) mod line;
pub(crate) mod reader;
mod writer;

use std::path::PathBuf;

pub use writer::DecisionLog;

/// Memory for lines that wait to be written, unless it is set otherwise, in bytes.
pub const DECISION_BUFFER_BYTES: usize = 64 << 20;

/// Where the decision log goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionLogSettings {
    /// The file; what is in it already is replaced.
    pub file: PathBuf,
    /// Memory for lines that wait to be written, in bytes. What has no room is dropped.
    pub buffer_bytes: usize,
}

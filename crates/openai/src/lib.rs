//! Reads facts from request bodies, splices edits into them, scans event streams and writes error bodies; pure, no I/O.
//!
//! In reading order:
//!
//! - [`walk`]: where the members of a JSON object are, for every body that Python's `json.loads` accepts
//! - [`members`]: the same as an iterator
//! - [`escape`]: JSON string escapes, in both directions
//! - [`splice`]: edits of a body that leave every other byte alone
//! - [`strip`]: members that could steer or kill an engine, and how they are cut
//! - [`shape`]: which members a route's body may have, and where its prompt is
//! - [`prompt`]: the prompt as parts that are borrowed from the body
//! - `flatten`: how prompts, messages and content become such parts
//! - `scalar`: how a worker would understand a number, a boolean or a name
//! - [`facts`]: all that a router wants to know of a body, in one pass
//! - [`form`]: the same of a multipart form that is still coming
//! - [`renaming`]: the model's name in an answer
//! - [`usage`]: token counts in a stream
//! - [`sse`]: record ends and kinds in a stream
//! - [`error`]: error bodies in the dialects of the APIs

pub mod walk;

pub mod members;

pub mod escape;

pub mod splice;

pub mod strip;

pub mod shape;

pub mod prompt;

mod flatten;

mod scalar;

pub mod facts;

pub mod form;

pub mod renaming;

pub mod usage;

pub mod sse;

pub mod error;

pub use error::{Dialect, ErrorBody, Extra, SoFar};
pub use facts::{Facts, ModelFact, SessionKeys};
pub use form::FormReader;
pub use members::{Member, Members};
pub use prompt::{Parts, Prompt, Scratch};
pub use renaming::{ModelPlace, Renaming};
pub use shape::BodyShape;
pub use splice::{Change, Splices};
pub use sse::{Record, RecordKind, SseScanner};
pub use strip::{InternalField, Place, Strip};
pub use usage::{Usage, UsageScan};
pub use walk::BodyError;

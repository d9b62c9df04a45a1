//! Why the yardstick cannot go on. Wrong answers of a router are no such reason: they are counted.

use std::io;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
    #[error("{0}")]
    Refused(String),
    #[error("interrupted")]
    Interrupted,
}

impl Failure {
    /// For `map_err`: says what was attempted.
    pub(crate) fn at(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

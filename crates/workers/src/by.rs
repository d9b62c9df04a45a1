//! What is chosen for a request, ranks or URLs, and why there may be no pool for it. Data only.

/// What is chosen for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum By {
    /// A rank, where ranks are told apart: for requests that can be told theirs.
    Rank,
    /// A URL: whatever rank serves it is the worker's own choice.
    Url,
}

/// Why no pool serves a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolError {
    /// No worker serves this name.
    UnknownModel,
    /// No name was given and there are several base models.
    ModelNeeded,
    /// Nothing is known of any worker yet.
    NothingKnown,
}

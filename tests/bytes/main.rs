//! Bytes in, bytes out: what belongs here shows that a worker gets what the client sent, and the client what the worker
//! sent, except for what must not pass.

// The lints on panics leave only code marked as test alone.
#[cfg(test)]
mod answers;
#[cfg(test)]
mod bodies;
#[cfg(test)]
mod headers;
#[cfg(test)]
mod internals;

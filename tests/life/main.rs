//! The life of requests, workers and the application itself: who leaves when, and what everybody else notices.

// The lints on panics leave only code marked as test alone.
#[cfg(test)]
mod clients;
#[cfg(test)]
mod fleet;
#[cfg(test)]
mod orders;
#[cfg(test)]
mod trials;

//! The life of requests, workers and the application itself: who leaves when, and what everybody else notices.

// The lints on panics leave only code marked as test alone.
#[cfg(test)]
mod access;
#[cfg(test)]
mod admission;
#[cfg(test)]
mod breakers;
#[cfg(test)]
mod clients;
#[cfg(test)]
mod fleet;
#[cfg(test)]
mod limits;
#[cfg(test)]
mod orders;
#[cfg(test)]
mod rests;
#[cfg(test)]
mod retries;
#[cfg(test)]
mod streams;
#[cfg(test)]
mod trials;

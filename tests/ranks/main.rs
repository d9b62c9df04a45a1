//! Data-parallel ranks: each is chosen and told by itself, and what a worker says of its ranks is believed.

// The lints on panics leave only code marked as test alone.
#[cfg(test)]
mod headers;
#[cfg(test)]
mod hits;
#[cfg(test)]
mod modes;
#[cfg(test)]
mod topology;

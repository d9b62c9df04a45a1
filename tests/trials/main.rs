//! Trials: what a reset puts back, what it leaves alone, and the report of what happened.

// The lints on panics leave only code marked as test alone.
#[cfg(test)]
mod doubts;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod holds;
#[cfg(test)]
mod named;
#[cfg(test)]
mod reports;
#[cfg(test)]
mod resets;
#[cfg(test)]
mod schema;
#[cfg(test)]
mod under_load;
#[cfg(test)]
mod workers;

//! Bad days: each way in which workers, clients, the network or the machine fail, with what the client sees, how the
//! request is counted, and that no load is left. Each case prints its row of the table:
//!
//! `cargo test -p forebay-tests --test days -- --nocapture --test-threads 1 | grep '^|'`

// The lints on panics leave only code marked as test alone.
#[cfg(test)]
mod clients;
#[cfg(test)]
mod day;
#[cfg(test)]
mod deaths;
#[cfg(test)]
mod fleets;
#[cfg(test)]
mod machine;
#[cfg(test)]
mod network;
#[cfg(test)]
mod processes;
#[cfg(test)]
mod silence;
#[cfg(test)]
mod wire;

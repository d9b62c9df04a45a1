//! Workers over real sockets, seen through a client that knows nothing but bytes.

// The lints on panics leave only code marked as test alone.
#[cfg(test)]
mod client;
mod disconnects;
mod faults;
mod gates;
mod routes;
mod speed;
mod streams;
mod timing;

//! Workers over real sockets, seen through a client that knows nothing but bytes.

// The lints on panics leave only code marked as test alone.
#[cfg(test)]
mod client;
#[cfg(test)]
mod disconnects;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod gates;
#[cfg(test)]
mod routes;
#[cfg(test)]
mod speed;
#[cfg(test)]
mod streams;
#[cfg(test)]
mod timing;

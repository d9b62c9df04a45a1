//! Connections to workers: the only place that opens, keeps and reads them.
//!
//! One HTTP/1.1 connection carries one exchange at a time. The response body is read by whoever polls it, straight
//! from the socket: no task and no channel stands in between, and everything that one read gave becomes one frame.
//!
//! - [`framing`]: where a message ends: length, chunks, close.
//! - [`head`]: the head of a response, from bytes.
//! - `dial`: the way to an open connection, one address after the other.
//! - [`conn`]: one connection: connect, send, await the head, read the body.
//! - [`idle`]: connections that wait for the next request.

mod conn;
mod dial;
pub mod framing;
pub mod head;
mod idle;

pub use conn::{Answer, BodyError, Conn, ExchangeError, Upstream};
pub use idle::Idle;

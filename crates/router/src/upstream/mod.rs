//! Connections to workers: the only place that opens, keeps and reads them.
//!
//! One HTTP/1.1 connection carries one exchange at a time. The response body is read by whoever polls it, straight
//! from the socket: no task and no channel stands in between, and everything that one read gave becomes one frame.
//!
//! - [`framing`]: where a message ends: length, chunks, close.
//! - [`head`]: the head of a response, from bytes.
//! - [`conn`]: one connection: connect, read the body of an answer.
//! - `exchange`: a request out, the head of its answer in.
//! - `streamed`: the same for a request whose body is still coming.
//! - [`idle`]: connections that wait for the next request.

mod conn;
mod exchange;
pub mod framing;
pub mod head;
mod idle;
mod streamed;

pub use conn::{Answer, BodyError, Conn, ExchangeError, Upstream};
pub use head::Expected;
pub use idle::{Home, Idle};
pub use streamed::{Source, StreamedError};

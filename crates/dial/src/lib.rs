//! The way to an open connection to a worker: TCP, a unix socket, TLS. It knows nothing of HTTP.
//!
//! - [`dialer`]: looks a name up, tries one address after the other, and says whom TLS believes.
//! - [`stream`]: the open connection, whatever it goes over.

pub mod dialer;
pub mod stream;

pub use dialer::{CaError, Dialer};
pub use stream::Stream;

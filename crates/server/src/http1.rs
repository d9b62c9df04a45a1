//! The server side of HTTP/1.1, as much of it as the data path needs and no more: a request is read in one piece where
//! it comes in one, and an answer's head leaves in one write with its body. It knows nothing of routes and workers.
//!
//! - [`head`]: a request's head, from bytes; where its body ends.
//! - [`input`]: what a client sends: heads, and bodies that are read when they are asked for.
//! - [`body`]: the body of a request, as whoever serves it sees it.
//! - [`answer`]: the head of an answer, and how its body is framed.
//! - [`output`]: what goes to the client, and what of it still waits.
//! - [`connection`]: one connection: request, answer, the next request.

pub mod answer;
pub mod body;
pub mod connection;
pub mod head;
pub mod input;
pub mod output;

use std::cell::RefCell;

/// Bytes that one read may give.
const SCRATCH_SIZE: usize = 64 * 1024;

thread_local! {
    /// What a read goes into before it is known what it is. One for each thread, so that a connection that waits holds
    /// no buffer.
    static SCRATCH: RefCell<Box<[u8; SCRATCH_SIZE]>> = RefCell::new(Box::new([0; SCRATCH_SIZE]));
}

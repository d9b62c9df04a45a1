//! What the integration tests share: the application between recording workers and a client that knows only bytes.
//!
//! - [`client`]: an HTTP/1.1 client that sends exactly what it is told to and reads what comes. It shares no code with
//!   the router or the workers.
//! - [`site`]: workers, the application in front of them, and what can be asked of both.
//! - [`announcing`]: workers that announce themselves, in the bytes of another ZeroMQ library.
//! - [`scripted`]: a worker that answers fixed bytes, right or wrong.
//! - [`raw`]: a worker that leaves its connections to the test.
//! - [`process`]: programs as processes of their own.
//!
//! Tests wait for signals: a gate, a count of a worker, a state of the fleet. Only a load has no signal, so it is looked
//! at until it is right.

#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "everything here runs inside a test, where a panic is the report"
)]

pub mod announcing;
pub mod client;
pub mod process;
pub mod raw;
pub mod scripted;
pub mod site;

use std::future::Future;
use std::time::Duration;

pub use client::{Answer, Client, Head, request};
pub use process::Process;
pub use scripted::Scripted;
pub use site::Site;

/// Longest time that a test may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs one test on a runtime of its own; it panics if the test takes more than a minute.
pub fn run<T>(test: impl Future<Output = T>) -> T {
    run_for(LIMIT, test)
}

/// The same with another limit.
pub fn run_for<T>(limit: Duration, test: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().expect("a runtime");
    let ended = runtime.block_on(async { tokio::time::timeout(limit, test).await });
    ended.expect("the test did not end in time")
}

/// Looks again and again until `ready` holds; it panics with `what` after 20 s.
pub async fn until(what: &str, mut ready: impl FnMut() -> bool) {
    let mut looks = 0;
    while !ready() {
        looks += 1;
        assert!(looks < 20_000, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

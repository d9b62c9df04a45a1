//! SIGINT and SIGTERM as values to wait for.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::startup::StartupError;

/// Takes SIGINT and SIGTERM over for as long as the process lives.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Starts to listen; within a tokio runtime.
    ///
    /// # Errors
    /// `Internal` if the operating system refuses.
    pub fn listen() -> Result<Self, StartupError> {
        let on =
            |kind| signal(kind).map_err(|e| StartupError::Internal(format!("cannot handle signals: {e}")));
        Ok(Self { interrupt: on(SignalKind::interrupt())?, terminate: on(SignalKind::terminate())? })
    }

    /// Waits for the next one; what a process that it killed would have exited with.
    pub async fn next(&mut self) -> i32 {
        tokio::select! {
            _ = self.interrupt.recv() => 128 + SignalKind::interrupt().as_raw_value(),
            _ = self.terminate.recv() => 128 + SignalKind::terminate().as_raw_value(),
        }
    }
}

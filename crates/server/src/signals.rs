//! SIGINT, SIGTERM and, where it is wanted, the end of stdin, as values to wait for.

use std::{io, thread};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use crate::startup::StartupError;

/// Takes SIGINT and SIGTERM over for as long as the process lives.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    stdin: Option<oneshot::Receiver<()>>,
}

impl Signals {
    /// Starts to listen; within a tokio runtime.
    ///
    /// # Errors
    /// `Internal` if the operating system refuses.
    pub fn listen() -> Result<Self, StartupError> {
        let on =
            |kind| signal(kind).map_err(|e| StartupError::Internal(format!("cannot handle signals: {e}")));
        let (interrupt, terminate) = (on(SignalKind::interrupt())?, on(SignalKind::terminate())?);
        Ok(Self { interrupt, terminate, stdin: None })
    }

    /// Takes the end of stdin as a SIGTERM, too, unless another one came before: whoever started the process and
    /// asked it to end may leave while it does.
    ///
    /// # Errors
    /// `Internal` if the operating system refuses.
    pub fn and_end_of_stdin(self) -> Result<Self, StartupError> {
        let (ended, stdin) = oneshot::channel();
        // A thread of its own, which the end of the process does not wait for: a read of stdin cannot be cancelled.
        let read = move || {
            let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
            let _ = ended.send(());
        };
        match thread::Builder::new().name("stdin".to_owned()).spawn(read) {
            Ok(_) => Ok(Self { stdin: Some(stdin), ..self }),
            Err(error) => {
                Err(StartupError::Internal(format!("cannot start a thread that reads stdin: {error}")))
            }
        }
    }

    /// Waits for the next one; what a process that it killed would have exited with.
    pub async fn next(&mut self) -> i32 {
        let stdin = async {
            match &mut self.stdin {
                Some(ended) => drop(ended.await),
                None => std::future::pending().await,
            }
        };
        let kind = tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.terminate.recv() => SignalKind::terminate(),
            () = stdin => SignalKind::terminate(),
        };
        self.stdin = None;
        128 + kind.as_raw_value()
    }
}

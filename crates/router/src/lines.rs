//! Lines for a file, written by a thread of their own: whoever has a line never waits for the disk. It does not know what
//! is in them.

use std::io::Write;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus::IntCounter;

/// Bytes that may wait to be written. More are dropped: a disk that stands still must not take the memory.
const MOST_WAITING: usize = 8 * 1024 * 1024;

/// How long the end waits for the last lines to be written: of a pipe that nobody reads they never are.
const LAST_LINES: Duration = Duration::from_secs(5);

/// The end of the file that lines are put in at. Dropping it writes what waits.
pub struct Lines {
    shared: Arc<Shared>,
    /// Disconnected when all is written.
    done: Mutex<Receiver<()>>,
    dropped: IntCounter,
}

struct Shared {
    waiting: Mutex<Waiting>,
    came: Condvar,
}

#[derive(Default)]
struct Waiting {
    bytes: Vec<u8>,
    is_closed: bool,
}

impl Lines {
    /// Starts the thread that writes to `out`. `dropped` counts the lines that there was no room for, or that could not
    /// be written.
    ///
    /// # Errors
    /// The operating system refuses the thread.
    pub fn start(out: Box<dyn Write + Send>, dropped: IntCounter) -> std::io::Result<Self> {
        let shared = Arc::new(Shared { waiting: Mutex::default(), came: Condvar::new() });
        let (source, count) = (Arc::clone(&shared), dropped.clone());
        let (ended, done) = sync_channel(0);
        let write = move || {
            source.write_all_to(out, &count);
            drop(ended);
        };
        std::thread::Builder::new().name("lines".to_owned()).spawn(write)?;
        Ok(Self { shared, done: Mutex::new(done), dropped })
    }

    /// Takes a line with its end.
    pub(crate) fn push(&self, line: &[u8]) {
        let mut waiting = self.shared.lock();
        if waiting.bytes.len() + line.len() > MOST_WAITING {
            self.dropped.inc();
            return;
        }
        let was_empty = waiting.bytes.is_empty();
        waiting.bytes.extend_from_slice(line);
        drop(waiting);
        if was_empty {
            self.shared.came.notify_one();
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.came.notify_one();
        let done = self.done.get_mut().unwrap_or_else(PoisonError::into_inner);
        if done.recv_timeout(LAST_LINES) == Err(RecvTimeoutError::Timeout) {
            tracing::error!("the last lines could not be written in time, and are lost");
        }
    }
}

impl Shared {
    /// Writes until it is closed: all that has come since the last time at once.
    fn write_all_to(&self, mut out: Box<dyn Write + Send>, dropped: &IntCounter) {
        let mut batch = Vec::new();
        let mut is_broken = false;
        while self.take(&mut batch) {
            let written = out.write_all(&batch).and_then(|()| out.flush());
            if let Err(error) = &written {
                dropped.inc_by(memchr::memchr_iter(b'\n', &batch).count() as u64);
                if !is_broken {
                    tracing::error!(%error, "lines cannot be written, and are lost (logged once until it works again)");
                }
            }
            is_broken = written.is_err();
            batch.clear();
        }
    }

    /// Waits for something to write; false if nothing will come any more.
    fn take(&self, batch: &mut Vec<u8>) -> bool {
        let mut waiting = self.lock();
        while waiting.bytes.is_empty() && !waiting.is_closed {
            waiting = self.came.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::swap(&mut waiting.bytes, batch);
        !batch.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::SyncSender;

    use super::*;

    /// Writes when it is allowed to.
    struct Gate {
        written: Arc<Mutex<Vec<u8>>>,
        began: SyncSender<()>,
        open: Receiver<()>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.began.send(()).unwrap();
            self.open.recv().map_err(std::io::Error::other)?;
            self.written.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_are_written_in_order_and_a_file_that_stands_still_holds_nobody_up() {
        let written = Arc::new(Mutex::new(Vec::new()));
        let ((began, has_begun), (open, opened)) = (sync_channel(9), sync_channel(9));
        let dropped = IntCounter::new("dropped", "dropped").unwrap();
        let gate = Gate { written: Arc::clone(&written), began, open: opened };
        let lines = Lines::start(Box::new(gate), dropped.clone()).unwrap();
        lines.push(b"first\n");
        has_begun.recv().unwrap();
        // The thread is inside its write now.
        lines.push(&[b'x'; MOST_WAITING - 1]);
        lines.push(b"\n");
        lines.push(b"too much\n");
        assert_eq!(dropped.get(), 1);
        for _ in 0..2 {
            open.send(()).unwrap();
        }
        drop(lines);
        let written = written.lock().unwrap();
        assert!(written.starts_with(b"first\nxxx") && written.ends_with(b"x\n"));
        assert_eq!(written.len(), 6 + MOST_WAITING);
    }

    #[test]
    fn a_pipe_that_nobody_reads_does_not_hold_up_the_end() {
        let dropped = IntCounter::new("dropped", "dropped").unwrap();
        let ((began, has_begun), (open, opened)) = (sync_channel(9), sync_channel(9));
        let gate = Gate { written: Arc::default(), began, open: opened };
        let lines = Lines::start(Box::new(gate), dropped).unwrap();
        lines.push(b"one\n");
        has_begun.recv().unwrap();
        drop(lines);
        open.send(()).unwrap();
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        let dropped = IntCounter::new("dropped", "dropped").unwrap();
        let ((began, _has_begun), (_, opened)) = (sync_channel(9), sync_channel(1));
        let gate = Gate { written: Arc::default(), began, open: opened };
        let lines = Lines::start(Box::new(gate), dropped.clone()).unwrap();
        lines.push(b"one\n");
        drop(lines);
        assert_eq!(dropped.get(), 1);
    }
}

//! From notes to lines in a file, on a thread of its own. It never keeps anybody waiting but itself.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_workers::note::{Asked, Note};
use forebay_workers::{Ledger, WorkerUrl};
use prometheus::{IntCounter, Registry};

use super::DecisionLogSettings;
use super::chain::{Shortened, Written, to_hex};
use super::line::{ChoiceLine, ChosenLine, EndLine, EndedLine, HashLine, Header, KeyLine, Line, PolicyLine};
use crate::settings::Settings;
use crate::startup::StartupError;

/// How long the end of the process waits for the last lines to be written.
const LAST_LINES: Duration = Duration::from_secs(5);

/// A log that is being written. Dropping it writes what waits, and the last line.
pub struct DecisionLog {
    ledger: Arc<Ledger>,
    done: Mutex<Receiver<()>>,
}

impl DecisionLog {
    /// Creates the file, writes its first line and starts the thread.
    ///
    /// # Errors
    /// `FlagInvalid` if the file cannot be written.
    pub fn start(
        log: &DecisionLogSettings,
        settings: &Settings,
        metrics: &Registry,
    ) -> Result<Self, StartupError> {
        let failed = |error: io::Error| {
            StartupError::FlagInvalid(format!("--decision-log: {}: {error}", log.file.display()))
        };
        let header = Line::Header(header(settings));
        let mut file = Lines::create(&log.file).map_err(failed)?;
        file.write(&header).and_then(|()| file.out.flush()).map_err(failed)?;
        let internal = |error: &dyn std::fmt::Display| StartupError::Internal(error.to_string());
        let dropped = IntCounter::new(
            "forebay_decision_log_dropped_total",
            "Lines of the decision log that were dropped because it could not be written fast enough.",
        )
        .map_err(|error| internal(&error))?;
        metrics.register(Box::new(dropped.clone())).map_err(|error| internal(&error))?;
        let ledger = Arc::new(Ledger::new(log.buffer_bytes, dropped));
        let (ended, done) = sync_channel(1);
        let write = {
            let ledger = Arc::clone(&ledger);
            move || run(&ledger, file, &ended)
        };
        std::thread::Builder::new()
            .name("decision-log".to_owned())
            .spawn(write)
            .map_err(|error| internal(&error))?;
        Ok(Self { ledger, done: Mutex::new(done) })
    }

    /// Where to note what is to be written.
    pub fn ledger(&self) -> Arc<Ledger> {
        Arc::clone(&self.ledger)
    }
}

impl Drop for DecisionLog {
    fn drop(&mut self) {
        self.ledger.close();
        let done = self.done.get_mut().unwrap_or_else(PoisonError::into_inner);
        if done.recv_timeout(LAST_LINES).is_err() {
            tracing::error!("the end of the decision log could not be written in time");
        }
    }
}

fn header(settings: &Settings) -> Header {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let started = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    let workers = settings.worker_urls.iter().map(WorkerUrl::to_string).collect();
    Header::new(started, settings.seed, settings.policy.clone(), workers)
}

/// Writes until the end. After a failure nothing more is written, and everything counts as dropped.
fn run(ledger: &Ledger, mut lines: Lines, ended: &SyncSender<()>) {
    let mut written = || -> io::Result<()> {
        while let Some(notes) = ledger.take() {
            for (seq, note) in notes {
                lines.note(seq, note)?;
            }
            lines.out.flush()?;
        }
        let dropped = ledger.dropped();
        let end = EndLine { lines: lines.count, dropped, exact: dropped == 0 };
        lines.write(&Line::End(end))?;
        lines.out.flush()
    };
    if let Err(error) = written() {
        tracing::error!(%error, "the decision log cannot be written; it ends here");
        ledger.close();
        while ledger.take().is_some() {}
    }
    let _nobody_waits = ended.send(());
}

/// The file, and the keys that are in it.
struct Lines {
    out: BufWriter<File>,
    keys: Written,
    count: u64,
}

impl Lines {
    fn create(path: &Path) -> io::Result<Self> {
        let out = BufWriter::with_capacity(1 << 18, File::create(path)?);
        Ok(Self { out, keys: Written::default(), count: 0 })
    }

    fn note(&mut self, seq: u64, note: Note) -> io::Result<()> {
        if self.keys.begins_anew() {
            self.write(&Line::KeysBeginAnew {})?;
        }
        let line = match note {
            Note::Policy(made) => Line::Policy(PolicyLine::new(seq, made)),
            Note::Asked(asked) => Line::Choice(Box::new(self.choice(seq, &asked))),
            Note::Forgot { policy, slot } => Line::Forget { seq, policy, slot: slot.0 },
            Note::Added { slot, name, rank } => {
                Line::WorkerAdded { seq, slot: slot.0, name: name.into(), rank }
            }
            Note::Removed { slot } => Line::WorkerRemoved { seq, slot: slot.0 },
            Note::Probed { slot, up } => Line::WorkerProbed { seq, slot: slot.0, up },
            Note::Capacity { slot, tokens } => Line::Capacity { seq, slot: slot.0, tokens },
            Note::Reset { epoch, seed, policies } => Line::Reset { seq, epoch, seed, policies },
            Note::Ended(ended) => Line::Ended(EndedLine::new(seq, &ended)),
        };
        self.count += 1;
        self.write(&line)
    }

    fn choice(&mut self, seq: u64, asked: &Asked) -> ChoiceLine {
        let key = (!asked.blocks.is_empty()).then(|| {
            let Shortened { earlier, new } = self.keys.shorten(seq, &asked.blocks);
            let (from, blocks) = earlier.unzip();
            KeyLine { bytes: asked.key_bytes, from, blocks: blocks.unwrap_or(0), new: to_hex(new) }
        });
        let hash = asked.hash.map(|key| HashLine { kind: key.kind, hash: to_hex(&[key.hash]) });
        ChoiceLine {
            seq,
            policy: asked.policy,
            epoch: asked.epoch,
            generation: asked.generation,
            request: String::from_utf8_lossy(&asked.request).into_owned(),
            attempt: asked.attempt,
            ms: asked.now_ms,
            streamed: asked.streamed,
            key,
            hash,
            counted: asked.counted,
            tokens: asked.tokens,
            candidates: asked.candidates.iter().map(Into::into).collect(),
            chosen: asked.choice.as_ref().map(ChosenLine::from),
        }
    }

    fn write(&mut self, line: &Line) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, line)?;
        self.out.write_all(b"\n")
    }
}

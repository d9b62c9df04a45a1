//! `forebay replay`: a decision log once more, without sockets and clocks. Checks that each choice is made again, and
//! tells what other policies would have made of the same requests.
//!
//! In reading order: `scene` (what a policy sees of a recorded fleet), `judges` (the policies of the log), `check` (each
//! choice once more), `facts` (requests and how they ended), `estimate` (how fast the workers were), `simulate` (the
//! requests on simulated workers), `table` (what is printed).

mod check;
mod estimate;
mod facts;
mod judges;
mod scene;
mod simulate;
mod table;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use forebay_policy::PolicyKind;
use indicatif::{ProgressBar, ProgressStyle};

use crate::decisions::reader::{Entry, LogError, LogReader};
use crate::given::{Given, Rejected};
use crate::rules::{POLICY, RATE, TOKENS_OF_CACHE};
use crate::startup::StartupError;
use check::Check;
use estimate::{Estimate, Given as GivenEngine};
use facts::Facts;
use simulate::Simulation;
use table::Column;
pub use table::Report;

/// Bytes of a log from which on it takes so long that progress is shown.
const LONG: u64 = 8 << 20;

/// Flags of the command.
#[derive(Args)]
pub struct ReplayFlags {
    /// The decision log
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Policies that are tried on the same requests, separated by commas [default: the recorded one]
    #[arg(long, value_name = "POLICY", value_delimiter = ',')]
    pub policy: Vec<Given>,
    /// Tokens that a simulated worker prefills in a second [default: estimated from the log]
    #[arg(long, value_name = "RATE")]
    pub prefill_rate: Option<Given>,
    /// Tokens that it generates in a second for one request [default: estimated from the log]
    #[arg(long, value_name = "RATE")]
    pub decode_rate: Option<Given>,
    /// Tokens that its prefix cache holds [default: as the workers told; if they did not, it keeps everything]
    #[arg(long, value_name = "TOKENS")]
    pub cache_tokens: Option<Given>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
}

/// A replay to be made.
#[derive(Debug, PartialEq)]
pub struct Replay {
    file: PathBuf,
    policies: Vec<PolicyKind>,
    engine: GivenEngine,
    json: bool,
}

impl Replay {
    /// Reads the flags.
    ///
    /// # Errors
    /// The first value that cannot be used.
    pub fn new(flags: ReplayFlags) -> Result<Self, Rejected> {
        let ReplayFlags { file, policy, prefill_rate, decode_rate, cache_tokens, json } = flags;
        let mut policies = Vec::new();
        for given in &policy {
            let kind = POLICY.of("policy", given)?;
            if policies.contains(&kind) {
                return Err(given.reject("policy", format!("{kind} is given twice; once is allowed")));
            }
            policies.push(kind);
        }
        let engine = GivenEngine {
            prefill_rate: prefill_rate.map(|rate| RATE.of("prefill-rate", &rate)).transpose()?,
            decode_rate: decode_rate.map(|rate| RATE.of("decode-rate", &rate)).transpose()?,
            cache_tokens: cache_tokens.map(|given| TOKENS_OF_CACHE.of("cache-tokens", &given)).transpose()?,
        };
        Ok(Self { file, policies, engine, json })
    }

    /// Replays and prints what came of it.
    ///
    /// # Errors
    /// The log cannot be read, or choices of a log that is all there were not made again.
    pub fn run(&self) -> Result<(), StartupError> {
        let report = self.report()?;
        let text = if self.json { report.json() } else { report.text() };
        io::stdout()
            .write_all(text.as_bytes())
            .map_err(|error| StartupError::Internal(format!("cannot write to stdout: {error}")))?;
        match report.failure() {
            Some(failure) => Err(StartupError::Internal(failure)),
            None => Ok(()),
        }
    }

    /// Replays.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn report(&self) -> Result<Report, StartupError> {
        self.replayed().map_err(|error| StartupError::FlagInvalid(error.to_string()))
    }

    fn replayed(&self) -> Result<Report, LogError> {
        let progress = Progress::new(&self.file);
        let (mut check, mut facts) = (Check::default(), Facts::default());
        let log = read(&self.file, &progress, |entry, reader| {
            check.take(&entry, reader)?;
            facts.take(&entry);
            Ok(())
        })?;
        let estimate = Estimate::new(&facts, &self.engine);
        let kinds = match &*self.policies {
            [] => vec![check.recorded_kind().unwrap_or(log.header.settings.kind)],
            given => given.to_vec(),
        };
        let mut runs: Vec<Simulation<'_>> =
            kinds.into_iter().map(|kind| Simulation::new(kind, &estimate, &facts)).collect();
        read(&self.file, &progress, |entry, reader| {
            runs.iter_mut().try_for_each(|run| run.take(&entry, reader))
        })?;
        let names = check.names();
        let mut columns = vec![Column::recorded(facts.tally(), check.recorded_kind(), names)];
        columns.extend(runs.into_iter().map(|run| run.end(names)));
        progress.end();
        Ok(Report {
            log: table::Log::new(&self.file, &log),
            check: check.end(),
            estimate: estimate.told(),
            columns,
        })
    }
}

/// Reads a log from its beginning to its end; gives the reader as it is then.
fn read(
    file: &Path,
    progress: &Progress,
    mut take: impl FnMut(Entry, &LogReader) -> Result<(), LogError>,
) -> Result<LogReader, LogError> {
    let mut reader = LogReader::open(file)?;
    let mut before = 0;
    while let Some(entry) = reader.next()? {
        take(entry, &reader)?;
        progress.read(reader.position - before);
        before = reader.position;
    }
    Ok(reader)
}

/// A bar on stderr, if that is a terminal and the log is long. The log is read twice.
struct Progress(Option<ProgressBar>);

impl Progress {
    fn new(file: &Path) -> Self {
        let bytes = fs::metadata(file).map_or(0, |found| found.len());
        let bar = (bytes > LONG).then(|| {
            let style = ProgressStyle::with_template("{bar:40} {percent:>3} % {bytes_per_sec} {eta} left");
            let bar = ProgressBar::new(2 * bytes);
            if let Ok(style) = style {
                bar.set_style(style);
            }
            bar
        });
        Self(bar)
    }

    fn read(&self, bytes: u64) {
        if let Some(bar) = &self.0 {
            bar.inc(bytes);
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

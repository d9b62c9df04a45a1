//! The log and the access log: where they go and how they look. What is in them is everybody else's.

use std::fs::File;
use std::io::{self, IsTerminal};

use forebay_router::{AccessLog, Lines};
use prometheus::IntCounter;

use tracing::level_filters::LevelFilter;

use crate::settings::{AccessLogSettings, LogFormat, LogLevel, LogSettings};
use crate::startup::StartupError;

/// Sends log events to stderr from now on.
///
/// # Errors
/// `Internal` if the process logs already.
pub fn start(settings: LogSettings) -> Result<(), StartupError> {
    let log = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_max_level(filter(settings.level));
    match settings.format {
        LogFormat::Text => log.try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    }
    .map_err(|error| StartupError::Internal(format!("cannot start the log: {error}")))
}

/// Opens the access log, if there is to be one.
///
/// # Errors
/// `FlagInvalid` if the file cannot be opened, `Internal` if the operating system refuses a thread.
pub fn access(settings: &AccessLogSettings, dropped: IntCounter) -> Result<Option<AccessLog>, StartupError> {
    let Some(format) = settings.format else { return Ok(None) };
    let out: Box<dyn io::Write + Send> = match &settings.file {
        None => Box::new(io::stdout()),
        Some(path) => Box::new(File::options().append(true).create(true).open(path).map_err(|error| {
            StartupError::FlagInvalid(format!(
                "--access-log-file: {} cannot be opened: {error}",
                path.display()
            ))
        })?),
    };
    let lines = Lines::start(out, dropped)
        .map_err(|error| StartupError::Internal(format!("cannot start the access log: {error}")))?;
    Ok(Some(AccessLog::new(format, lines)))
}

const fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

//! The log: where it goes and how it looks. What is in it is everybody else's.

use std::io::{self, IsTerminal};

use tracing::level_filters::LevelFilter;

use crate::settings::{LogFormat, LogLevel, LogSettings};
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

const fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

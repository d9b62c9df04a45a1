//! Why the program did not start: the closed set of reasons, each with its exit code.

use std::net::SocketAddr;
use std::time::Duration;

use forebay_discovery::Misfit;
use forebay_workers::Role;
use thiserror::Error;

/// The exit codes, as the help shows them.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  the program was asked to end and did
  1  internal: the operating system refused something, or a bug
  2  flag_invalid, config_invalid: a flag, an environment variable or the config file cannot be used
  3  port_in_use: another process listens on an address
  4  no_worker_ready: workers were given and none was ready in time
  130, 143  a second SIGINT or SIGTERM came while streams were still running
A failed start writes one JSON line to stderr: {\"event\":\"startup_failed\",\"reason\":…,\"message\":…}";

/// Why the program did not start.
///
/// | reason            | exit code | meaning                                                      |
/// |-------------------|-----------|--------------------------------------------------------------|
/// | `internal`        | 1         | the operating system refused something, or a bug             |
/// | `flag_invalid`    | 2         | a flag or an environment variable has a value it cannot have |
/// | `config_invalid`  | 2         | so has the config file, or it cannot be read                 |
/// | `port_in_use`     | 3         | another process listens on an address                        |
/// | `no_worker_ready` | 4         | workers were given and none was ready in time                |
#[derive(Debug, Error)]
pub enum StartupError {
    /// The text names the flag or the environment variable, what was given and what is allowed.
    #[error("{0}")]
    FlagInvalid(String),
    /// The text names the place in the file.
    #[error("{0}")]
    ConfigInvalid(String),
    /// Another process listens there.
    #[error("{flag}: {addr} is in use by another process; choose another port, or 0 for a free one")]
    PortInUse {
        /// The flag that chooses the port, such as `--port`.
        flag: &'static str,
        /// The address.
        addr: SocketAddr,
    },
    /// Workers were given and none was ready in time.
    #[error("none of {workers} workers was ready within {} s (--worker-startup-timeout-secs)", waited.as_secs_f64())]
    NoWorkerReady {
        /// How many were asked.
        workers: usize,
        /// For how long.
        waited: Duration,
    },
    /// Anything else; the text says what was attempted and what came of it.
    #[error("{0}")]
    Internal(String),
}

impl StartupError {
    /// A worker has other ranks than were given.
    pub fn ranks(Misfit { url, role, given, found }: &Misfit) -> Self {
        let flag = match role {
            Role::Regular => "intra-node-data-parallel-size",
            Role::Prefill { .. } => "prefill-data-parallel-size",
            Role::Decode => "decode-data-parallel-size",
        };
        Self::FlagInvalid(format!(
            "--{flag}: {given} was given, but {url} has {found}; give {found}, or auto"
        ))
    }

    /// The name of the reason in the event line.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::FlagInvalid(_) => "flag_invalid",
            Self::ConfigInvalid(_) => "config_invalid",
            Self::PortInUse { .. } => "port_in_use",
            Self::NoWorkerReady { .. } => "no_worker_ready",
            Self::Internal(_) => "internal",
        }
    }

    /// What the process exits with.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Internal(_) => 1,
            Self::FlagInvalid(_) | Self::ConfigInvalid(_) => 2,
            Self::PortInUse { .. } => 3,
            Self::NoWorkerReady { .. } => 4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_names_every_reason_next_to_its_exit_code() {
        let addr = SocketAddr::from(([127, 0, 0, 1], 1));
        let all = [
            StartupError::FlagInvalid(String::new()),
            StartupError::ConfigInvalid(String::new()),
            StartupError::PortInUse { flag: "--port", addr },
            StartupError::NoWorkerReady { workers: 1, waited: Duration::from_secs(1) },
            StartupError::Internal(String::new()),
        ];
        for error in all {
            let code = format!("  {}  ", error.exit_code());
            let line = EXIT_CODES.lines().find(|line| line.starts_with(&code)).unwrap();
            assert!(line.contains(error.reason()), "{line}");
        }
    }
}

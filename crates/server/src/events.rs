//! The event lines: what another program may rely on, one JSON object per line. Everything else is the log's.

use std::io::{self, Write};

use serde::Serialize;

use crate::startup::StartupError;

/// Something that happened to the process.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event<'a> {
    /// Sockets accept connections.
    Listening {
        /// Where clients connect.
        url: &'a str,
        /// Where the admin API is, if there is one.
        #[serde(skip_serializing_if = "Option::is_none")]
        admin_url: Option<&'a str>,
        /// What a simulated worker does of prefill/decode pairs.
        #[serde(skip_serializing_if = "Option::is_none")]
        role: Option<&'a str>,
        /// Id of the process.
        pid: u32,
    },
    /// What simulated workers have handed over to each other, at their end.
    HandedOver {
        /// Prompts.
        transfers: u64,
        /// What would have harmed an engine, by name.
        violations: &'a std::collections::BTreeMap<String, u64>,
    },
    /// A request can be served.
    Ready {
        /// Workers that may be chosen.
        eligible_workers: usize,
    },
    /// The program ends because it could not start.
    StartupFailed {
        /// Name of the reason.
        reason: &'static str,
        /// For people.
        message: &'a str,
    },
}

impl Event<'_> {
    /// Writes the line to stdout. Nobody reading it is no reason to stop.
    pub fn announce(&self) {
        let _ = self.write(io::stdout().lock());
    }

    fn write(&self, mut out: impl Write) -> io::Result<()> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        out.write_all(&line)?;
        out.flush()
    }
}

/// Writes the line of a failed start to stderr.
pub fn startup_failed(error: &StartupError) {
    let event = Event::StartupFailed { reason: error.reason(), message: &error.to_string() };
    let _ = event.write(io::stderr().lock());
}

//! Programs as processes of their own: their event lines, signals, and what the operating system says of them.

use std::path::Path;
use std::process::{ExitStatus, Stdio};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// A running program; killed at the latest when this is dropped.
pub struct Process {
    child: Child,
    pid: u32,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts it with arguments that are separated by blanks. Its stderr goes where that of the test goes.
    pub fn start(program: impl AsRef<Path>, arguments: &str) -> Self {
        Self::start_with(program, arguments, |_| ())
    }

    /// As [`Self::start`], after further changes to the command.
    pub fn start_with(program: impl AsRef<Path>, arguments: &str, change: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new(program.as_ref());
        command.args(arguments.split_ascii_whitespace()).kill_on_drop(true);
        command.env_remove("FOREBAY_API_KEY").env_remove("FOREBAY_ADMIN_API_KEY");
        change(&mut command);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process");
        let input = child.stdin.take().expect("its stdin");
        let lines = BufReader::new(child.stdout.take().expect("its stdout")).lines();
        Self { pid: child.id().expect("its id"), child, input, lines }
    }

    /// Id of the process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The next line of its stdout as JSON; `None` when it has ended.
    pub async fn next(&mut self) -> Option<Value> {
        let line = self.lines.next_line().await.ok()??;
        Some(serde_json::from_str(&line).unwrap_or(Value::String(line)))
    }

    /// The next event line, which must be `name`.
    pub async fn event(&mut self, name: &str) -> Value {
        let event = self.next().await.expect("it ended");
        assert_eq!(event["event"], name, "{event}");
        event
    }

    /// Writes a line to its stdin; false if it has ended.
    pub async fn tell(&mut self, line: &str) -> bool {
        self.input.write_all(format!("{line}\n").as_bytes()).await.is_ok()
    }

    /// Sends a signal, as in `-TERM`.
    pub async fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.pid.to_string()]).status().await;
        assert!(status.expect("kill").success(), "{name} to {}", self.pid);
    }

    /// Kills it with SIGKILL, and waits until it is gone.
    pub async fn kill(&mut self) {
        self.child.kill().await.expect("it can be killed");
    }

    /// Waits for its end.
    pub async fn end(&mut self) -> ExitStatus {
        self.child.wait().await.expect("it ends")
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Resident memory in bytes; 0 if it has ended.
    pub fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
        line.trim().trim_end_matches(" kB").parse().map_or(0, |kib: u64| kib * 1024)
    }

    /// Open file descriptors; 0 if it has ended.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid)).map_or(0, Iterator::count)
    }
}

//! The binary as a process: exit codes, and what goes to stdout and stderr. What flags mean is tested in the library.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests may panic like tests")]

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

fn forebay(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command
        .args(arguments.split(' ').filter(|argument| !argument.is_empty()))
        .env_remove("FOREBAY_API_KEY")
        .env_remove("FOREBAY_ADMIN_API_KEY");
    command
}

fn output(arguments: &str) -> Output {
    forebay(arguments).output().unwrap()
}

/// The only line on stderr, if the start failed with `code` and stdout is empty.
fn failure(arguments: &str, code: i32) -> Value {
    let output = output(arguments);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments}: {stderr}");
    assert_eq!(output.stdout, b"", "{arguments}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    serde_json::from_str(&stderr).unwrap()
}

/// A running process; killed at the latest when the test ends.
struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    fn start(arguments: &str) -> Self {
        Self::spawn(&mut forebay(arguments))
    }

    fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// The next event line, which must be `name`.
    fn event(&mut self, name: &str) -> Value {
        let line = self.lines.next().expect("it ended").unwrap();
        let event: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(event["event"], name, "{line}");
        event
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    fn exit_code(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn port(event: &Value, key: &str) -> String {
    event[key].as_str().unwrap().rsplit(':').next().unwrap().to_owned()
}

/// The whole answer to a request without a body.
fn get(event: &Value, path: &str) -> String {
    let addr = event["url"].as_str().unwrap().strip_prefix("http://").unwrap().to_owned();
    let mut stream = TcpStream::connect(&addr).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_bad_flag_is_exit_code_2_with_one_json_line_on_stderr_and_nothing_on_stdout() {
    let event = failure("--port 99999", 2);
    assert_eq!(event["event"], "startup_failed");
    assert_eq!(event["reason"], "flag_invalid");
    assert_eq!(event["message"], "--port: 99999 is not a port number from 0 to 65535");
    assert_eq!(failure("--no-such-flag", 2)["reason"], "flag_invalid");
}

#[test]
fn help_and_version_go_to_stdout() {
    for arguments in ["--help", "--version", "serve --help"] {
        let output = output(arguments);
        assert!(output.status.success(), "{arguments}");
        assert!(!output.stdout.is_empty() && output.stderr.is_empty(), "{arguments}");
    }
}

#[test]
fn check_says_ok_or_what_is_wrong() {
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config");
    let good = output(&format!("check --config {config}/example.yaml"));
    let stdout = String::from_utf8(good.stdout).unwrap();
    assert!(good.status.success());
    let mut lines = stdout.lines();
    assert_eq!(lines.next(), Some(&*format!("ok: {config}/example.yaml")));
    assert!(lines.next().unwrap().contains("policy cache_aware"));
    assert_eq!(lines.next(), None);
    let bad = failure(&format!("check --config {config}/tests/invalid/port_out_of_range.yaml"), 2);
    assert_eq!(bad["reason"], "config_invalid");
}

#[test]
fn a_port_that_is_taken_is_exit_code_3_and_named() {
    let mut first = Running::start("--port 0 --admin-port 0");
    let event = first.event("listening");
    for (flag, other, taken) in [
        ("--port", "--admin-port", port(&event, "url")),
        ("--admin-port", "--port", port(&event, "admin_url")),
    ] {
        let failed = failure(&format!("{flag} {taken} {other} 0"), 3);
        assert_eq!(failed["reason"], "port_in_use");
        assert!(
            failed["message"].as_str().unwrap().starts_with(&format!("{flag}: 127.0.0.1:{taken} ")),
            "{failed}"
        );
    }
}

#[test]
fn workers_that_do_not_come_are_exit_code_4() {
    // Port 1 of loopback: nobody listens there.
    let mut process = Running::start(
        "--worker-urls http://127.0.0.1:1 --port 0 --admin-port 0 --worker-startup-timeout-secs 0.2",
    );
    process.event("listening");
    assert_eq!(process.exit_code(), Some(4));
}

#[test]
fn why_a_worker_is_not_ready_is_in_the_log() {
    let arguments =
        "--worker-urls http://127.0.0.1:1 --port 0 --admin-port 0 --worker-startup-timeout-secs 20";
    let mut command = forebay(arguments);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let line = log.find(|line| line.contains("worker is not ready"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(line.unwrap().contains("Connection refused"));
}

#[test]
fn a_signal_ends_it_with_exit_code_0() {
    for signal in ["-TERM", "-INT"] {
        let mut process = Running::start("--port 0 --admin-port 0");
        let event = process.event("listening");
        assert_eq!(event["pid"], process.child.id());
        process.signal(signal);
        assert_eq!(process.exit_code(), Some(0), "{signal}");
    }
}

#[test]
fn the_end_of_stdin_ends_it_only_if_that_is_wanted() {
    for arguments in ["--port 0 --admin-port 0", "sim --port 0"] {
        let mut process = Running::spawn(forebay(arguments).arg("--end-with-stdin").stdin(Stdio::piped()));
        process.event("listening");
        let stdin = process.child.stdin.take().unwrap();
        (&stdin).write_all(b"what is written there does not matter").unwrap();
        drop(stdin);
        assert_eq!(process.exit_code(), Some(0), "{arguments}");
    }
    let mut process = Running::spawn(forebay("--port 0 --admin-port 0").stdin(Stdio::null()));
    let event = process.event("listening");
    assert!(get(&event, "/workers").starts_with("HTTP/1.1 200"), "it goes on");
    process.signal("-TERM");
    assert_eq!(process.exit_code(), Some(0));
}

#[test]
fn simulated_workers_run_alone_and_serve_their_model() {
    let mut sim = Running::start("sim --port 0 --workers 2 --model sim-model");
    let (first, second) = (sim.event("listening"), sim.event("listening"));
    assert_ne!(first["url"], second["url"]);
    for worker in [&first, &second] {
        assert!(get(worker, "/v1/models").contains("sim-model"));
    }
    let taken = failure(&format!("sim --port {}", port(&first, "url")), 3);
    assert_eq!(taken["reason"], "port_in_use");
    sim.signal("-TERM");
    assert_eq!(sim.exit_code(), Some(0));
}

#[test]
fn a_simulated_worker_has_the_ranks_that_it_was_given_and_so_have_those_of_a_demo() {
    let mut sim = Running::start("sim --port 0 --data-parallel-size 3");
    let metrics = get(&sim.event("listening"), "/metrics");
    assert_eq!(metrics.matches("vllm:num_requests_running{").count(), 3, "{metrics}");
    sim.signal("-TERM");
    assert_eq!(sim.exit_code(), Some(0));
    let mut demo =
        Running::start("demo --workers 2 --port 0 --admin-port 0 --intra-node-data-parallel-size 2");
    let listening = demo.event("listening");
    assert!(demo.event("ready")["eligible_workers"].as_u64().unwrap() >= 2);
    assert_eq!(get(&listening, "/workers").matches("\"rank\":1").count(), 2);
    demo.signal("-INT");
    assert_eq!(demo.exit_code(), Some(0));
}

#[test]
fn a_demo_becomes_ready_and_serves_the_simulated_model() {
    let mut demo = Running::start("demo --workers 2 --port 0 --admin-port 0");
    let listening = demo.event("listening");
    assert!(demo.event("ready")["eligible_workers"].as_u64().unwrap() >= 1);
    assert!(get(&listening, "/v1/models").contains("demo"));
    demo.signal("-INT");
    assert_eq!(demo.exit_code(), Some(0));
}

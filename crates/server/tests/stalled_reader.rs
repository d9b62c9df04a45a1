//! A client that stops reading costs the process next to nothing: the worker waits, not the router's memory.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests may panic like tests")]

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use serde_json::Value;

const MIB: usize = 1024 * 1024;
/// Length of the stream: more than twice what the kernel's buffers of both connections take where they grow to their usual
/// limits, 32 MiB to receive and 4 MiB to send.
const STREAM: usize = 160 * MIB;
/// One chunk of it.
const CHUNK: usize = 4096;
/// Clients that stop reading, at the same time: with one alone, growth would drown in what pages are rounded up to.
const CLIENTS: usize = 16;
/// What the process may grow by for each of them, while all that waits behind it.
const GROWTH_PER_CLIENT: usize = 256 * 1024;
/// What the allocator and the C library may touch for the first time: two huge pages.
const SLACK: usize = 2 * 2 * MIB;

/// The router; killed when the test ends.
struct Router(Child);

impl Drop for Router {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Router {
    /// Starts it in front of a worker, and gives its address.
    fn start(worker: SocketAddr) -> (Self, SocketAddr) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.args(["--port", "0", "--admin-port", "0", "--threads", "1", "--log-level", "error"]);
        command.args(["--worker-urls", &format!("http://{worker}")]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut event = |name: &str| -> Value {
            let event: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
            assert_eq!(event["event"], name);
            event
        };
        let url = event("listening")["url"].as_str().unwrap().to_owned();
        event("ready");
        (Self(child), url.strip_prefix("http://").unwrap().parse().unwrap())
    }

    /// Resident memory, in bytes.
    fn resident(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
    }
}

/// A worker that is well and streams to whoever asks for a completion. It tells each time that it is stuck: that nothing
/// could be written for a second.
fn worker(stuck: SyncSender<usize>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, stuck) = (stream.unwrap(), stuck.clone());
            std::thread::spawn(move || serve(stream, &stuck));
        }
    });
    address
}

fn serve(mut stream: TcpStream, stuck: &SyncSender<usize>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let (mut first, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if let Some(text) = line.strip_prefix("content-length: ") {
                length = text.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
            if first.is_empty() {
                first = line;
            }
        }
        reader.read_exact(&mut vec![0; length]).unwrap();
        if first.starts_with("POST /v1/completions") {
            if !send(&mut stream, stuck) {
                return;
            }
        } else {
            let status = if first.starts_with("GET /health") { "200 OK" } else { "404 Not Found" };
            let _ = write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
        }
    }
}

/// One stream, chunk by chunk; false if the other side has left.
fn send(stream: &mut TcpStream, stuck: &SyncSender<usize>) -> bool {
    stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    .unwrap();
    let chunk = [format!("{CHUNK:x}\r\n").as_bytes(), &[b'x'; CHUNK], b"\r\n"].concat();
    let mut told = false;
    for sent in 0..STREAM / CHUNK {
        let mut rest = &chunk[..];
        while !rest.is_empty() {
            match stream.write(rest) {
                Ok(wrote) => rest = &rest[wrote..],
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if !std::mem::replace(&mut told, true) {
                        stuck.send(sent * CHUNK).unwrap();
                    }
                }
                // The client has left.
                Err(_) => return false,
            }
        }
    }
    stream.write_all(b"0\r\n\r\n").is_ok()
}

/// A client that has asked, and read the head of the answer.
fn ask(router: SocketAddr) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(router).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let body = r#"{"prompt":"x","stream":true}"#;
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut reader = BufReader::with_capacity(1024, stream);
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        reader.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "the head breaks off");
    }
    reader
}

/// A request that is answered at once.
fn touch(router: SocketAddr) {
    for target in ["GET /health", "POST /tokenize"] {
        let mut stream = TcpStream::connect(router).unwrap();
        write!(stream, "{target} HTTP/1.1\r\nhost: h\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{{}}")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 "), "{answer}");
    }
}

/// Reads the rest of the stream, and gives the length of its payload.
fn read_all(mut reader: BufReader<TcpStream>) -> usize {
    let mut total = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let size = usize::from_str_radix(line.trim_end(), 16).expect("a chunk size");
        let mut chunk = vec![0; size + 2];
        reader.read_exact(&mut chunk).unwrap();
        assert!(chunk[..size].iter().all(|byte| *byte == b'x'));
        if size == 0 {
            return total;
        }
        total += size;
    }
}

/// Waits until the worker can write no more, and gives how much it could.
fn wait_stuck(stuck: &Receiver<usize>) -> usize {
    stuck.recv_timeout(Duration::from_secs(30)).expect("the worker was never stopped")
}

#[test]
fn clients_that_stop_reading_stop_the_worker_and_cost_next_to_no_memory() {
    let (tell, stuck) = sync_channel(CLIENTS);
    let (router, address) = Router::start(worker(tell));
    // What every request touches is touched before: a page of the router's own, and a worker's short answer.
    touch(address);
    let before = router.resident();
    let stalled: Vec<_> = (0..CLIENTS).map(|_| ask(address)).collect();
    let sent: Vec<usize> = stalled.iter().map(|_| wait_stuck(&stuck)).collect();
    let grown = router.resident().saturating_sub(before);
    println!("the worker was stopped after {sent:?} bytes; resident memory grew by {grown} from {before}");
    assert!(sent.iter().all(|sent| *sent < STREAM / 2), "the worker was not stopped: {sent:?}");
    assert!(grown <= CLIENTS * GROWTH_PER_CLIENT + SLACK, "resident memory grew by {grown}");
    for (i, client) in stalled.into_iter().enumerate() {
        // One of them goes on to the end, the others leave.
        assert!(i > 0 || read_all(client) == STREAM);
    }
    let after = router.resident().saturating_sub(before);
    println!("when all had left it had grown by {after}");
    assert!(after <= CLIENTS * GROWTH_PER_CLIENT + SLACK, "resident memory grew by {after}");
}

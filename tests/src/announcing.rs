//! Workers that announce themselves: the bytes that a DEALER of libzmq 4.3.5 sends with messages of Python's msgpack, as they
//! were recorded, with other addresses in them.

use std::net::SocketAddr;
use std::time::Duration;

use forebay::settings::{Listen, WorkerSocket};
use forebay_discovery::Range;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Between two announcements: more often than workers, so that a busy machine does not make them look silent.
const BEAT: Duration = Duration::from_millis(500);

/// A worker's word on itself.
#[derive(Clone, Debug)]
pub struct Announced {
    kind: String,
    http_address: String,
    zmq_address: String,
}

/// A worker that goes on announcing itself until this is dropped.
pub struct Beats {
    _beating: JoinSet<()>,
}

/// A free port of this machine, and the ranges that are usual.
pub fn settings() -> WorkerSocket {
    let listen = Listen { host: std::net::Ipv4Addr::LOCALHOST.into(), port: 0 };
    WorkerSocket { listen, allow: Range::usual() }
}

impl Announced {
    /// `kind` is `P` or `D`.
    pub fn of(kind: &str, url: &str, zmq_address: &str) -> Self {
        let http_address = url.strip_prefix("http://").unwrap_or(url).to_owned();
        Self { kind: kind.to_owned(), http_address, zmq_address: zmq_address.to_owned() }
    }

    /// What opens the connection: greeting and READY, the socket's name being the ZMQ address.
    pub fn opening(&self) -> Vec<u8> {
        let name = self.zmq_address.as_bytes();
        let ready = [
            b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00",
            &[length(name)][..],
            name,
        ]
        .concat();
        let greeting =
            [&b"\xff\0\0\0\0\0\0\0"[..], &[length(name) + 1], b"\x7f\x03\x01NULL", &[0; 48]].concat();
        [&greeting[..], &[4, length(&ready)], &ready].concat()
    }

    /// One announcement.
    pub fn message(&self) -> Vec<u8> {
        let short = |text: &str| [&[0xa0 | length(text.as_bytes())], text.as_bytes()].concat();
        let members =
            [("type", &self.kind), ("http_address", &self.http_address), ("zmq_address", &self.zmq_address)];
        let members = members.iter().flat_map(|(key, value)| [short(key), short(value)].concat());
        let payload: Vec<u8> = [0x83].into_iter().chain(members).collect();
        [&[0, length(&payload)], &payload[..]].concat()
    }
}

impl Beats {
    /// Connects, and has announced itself once when this is over.
    pub async fn begin(address: SocketAddr, said: Announced) -> Self {
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        stream.write_all(&[said.opening(), said.message()].concat()).await.expect("an announcement");
        let mut beating = JoinSet::new();
        beating.spawn(async move {
            let mut answer = [0; 256];
            let mut beats = tokio::time::interval(BEAT);
            loop {
                tokio::select! {
                    _ = beats.tick() => if stream.write_all(&said.message()).await.is_err() { return },
                    read = stream.read(&mut answer) => if !read.is_ok_and(|read| read > 0) { return },
                }
            }
        });
        Self { _beating: beating }
    }
}

fn length(bytes: &[u8]) -> u8 {
    u8::try_from(bytes.len()).expect("something short")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As recorded between pyzmq 27.3 (libzmq 4.3.5, msgpack 1.2.4) and a bare socket.
    const RECORDED: &[u8] = b"\xff\x00\x00\x00\x00\x00\x00\x00\x10\x7f\x03\x01NULL\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x048\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x0f127.0.0.1:21001\x00@\x83\xa4type\xa1P\xachttp_address\xae127.0.0.1:8000\xabzmq_address\xaf127.0.0.1:21001";

    #[test]
    fn it_is_what_was_recorded_byte_for_byte() {
        let said = Announced::of("P", "http://127.0.0.1:8000", "127.0.0.1:21001");
        assert_eq!([said.opening(), said.message()].concat(), RECORDED);
    }
}

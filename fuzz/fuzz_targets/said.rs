//! What workers say over ZeroMQ: no bytes make the reader of its frames or of the messages in them panic, how they are split
//! over reads makes no difference, and what an announcement names is what is allowed.
#![no_main]

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use forebay_discovery::announcement::Announcement;
use forebay_discovery::zmtp::{Message, Peer, Socket};
use forebay_discovery::{Range, readiness};
use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncRead, ReadBuf, join, sink};
use tokio::runtime::Builder;

/// A peer's greeting and READY, behind which what it says is the fuzzer's. One input in eight greets by itself.
const GREETING: &[u8] = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL";
const GREETING_LENGTH: usize = 64;
const READY: &[u8] = b"\x04\x1a\x05READY\x0bSocket-Type\0\0\0\x04PUSH";

fuzz_target!(|input: (u8, &[u8])| {
    let (kind, said) = input;
    let mut wire = Vec::new();
    if kind & 7 != 0 {
        wire.extend_from_slice(GREETING);
        wire.resize(GREETING_LENGTH, 0);
        wire.extend_from_slice(READY);
    }
    wire.extend_from_slice(said);
    let messages = heard(&wire, usize::MAX);
    assert_eq!(messages, heard(&wire, usize::from(kind / 8) + 1));
    for message in messages.iter().filter_map(|message| match message {
        Message::Single(message) => Some(message),
        Message::Several => None,
    }) {
        understood(message);
    }
    // What is in a message is found sooner without the frames around it.
    understood(said);
});

fn understood(message: &[u8]) {
    let _id = readiness::req_id(message);
    let allow = Range::usual();
    let Ok(announcement) = Announcement::read(message, &allow) else { return };
    for address in [announcement.url.as_str().trim_start_matches("http://"), &announcement.kv_address] {
        let address: std::net::SocketAddr = address.parse().expect("an address");
        assert!(allow.iter().any(|range| range.contains(address.ip())), "{address}");
    }
}

/// The messages of a peer that sends this, of which each read gives `step` bytes, up to what is none.
fn heard(wire: &[u8], step: usize) -> Vec<Message> {
    let runtime = Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let mut messages = Vec::new();
        let stream = join(Pieces { rest: wire, step }, sink());
        if let Ok(mut peer) = Peer::greet(stream, Socket::Pull).await {
            while let Ok(Some(message)) = peer.message().await {
                messages.push(message);
            }
        }
        messages
    })
}

struct Pieces<'a> {
    rest: &'a [u8],
    step: usize,
}

impl AsyncRead for Pieces<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        read: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (now, rest) = self.rest.split_at(self.step.min(read.remaining()).min(self.rest.len()));
        read.put_slice(now);
        self.rest = rest;
        Poll::Ready(Ok(()))
    }
}

//! The messages by which each rank of a prefill worker says that it has written: PUSH sockets of ZeroMQ (ZMTP 3.0), one
//! connection for each rank. It can lose and repeat them.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use crate::exchange::Exchange;

/// How a prefill worker's ranks speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Speech {
    /// Between the order and the first message.
    pub delay: Duration,
    /// Each so many orders the last rank says nothing; 0 is never.
    pub lost_each: u64,
    /// Each so many orders every message comes twice, and the order before is told once more; 0 is never.
    pub repeated_each: u64,
}

/// Orders that wait to be told. Who orders more waits.
const WAITING: usize = 1024;

/// A worker's ranks, told of orders.
#[derive(Debug)]
pub(crate) struct Notices {
    orders: SyncSender<Order>,
}

struct Order {
    exchange: Exchange,
    req_id: String,
    ranks: usize,
}

impl Notices {
    /// Ranks that speak so.
    pub(crate) fn new(speech: Speech) -> Self {
        let (orders, told) = sync_channel(WAITING);
        std::thread::spawn(move || {
            Ranks { speech, connections: Vec::new(), last: (String::new(), 0) }.run(&told);
        });
        Self { orders }
    }

    /// All ranks are to say that they have written under this id.
    pub(crate) fn order(&self, exchange: &Exchange, req_id: &str, ranks: usize) {
        let order = Order { exchange: exchange.clone(), req_id: req_id.to_owned(), ranks };
        // The thread ends with the worker only.
        let _sent = self.orders.send(order);
    }
}

struct Ranks {
    speech: Speech,
    /// One for each rank.
    connections: Vec<Option<TcpStream>>,
    /// The order before, and how many ranks told of it.
    last: (String, usize),
}

impl Ranks {
    fn run(mut self, orders: &Receiver<Order>) {
        for (count, order) in (1_u64..).zip(orders.iter()) {
            std::thread::sleep(self.speech.delay);
            let Some(proxy) = order.exchange.proxy() else { continue };
            let each = |every: u64| every > 0 && count.is_multiple_of(every);
            let repeats = if each(self.speech.repeated_each) { 2 } else { 1 };
            let speaking = order.ranks - usize::from(each(self.speech.lost_each));
            for rank in 0..speaking {
                order.exchange.written(&order.req_id);
                for _ in 0..repeats {
                    self.say(proxy, rank, &order.req_id);
                }
                if repeats > 1 {
                    let (last, told) = self.last.clone();
                    // A rank that was not heard then is heard now.
                    if rank >= told {
                        order.exchange.written(&last);
                    }
                    self.say(proxy, rank, &last);
                }
            }
            self.last = (order.req_id, speaking);
        }
    }

    /// One message, on the rank's connection or a new one.
    fn say(&mut self, proxy: SocketAddr, rank: usize, req_id: &str) {
        if self.connections.len() <= rank {
            self.connections.resize_with(rank + 1, || None);
        }
        let place = &mut self.connections[rank];
        if place.is_none() {
            *place = connected(proxy).ok();
        }
        if place.as_mut().is_some_and(|stream| stream.write_all(&message(req_id)).is_err()) {
            *place = None;
        }
    }
}

/// A PUSH socket's connection.
fn connected(proxy: SocketAddr) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(proxy)?;
    stream.set_nodelay(true)?;
    let mut greeting = [0; 64];
    greeting[..16].copy_from_slice(b"\xff\0\0\0\0\0\0\0\0\x7f\x03\0NULL");
    stream.write_all(&greeting)?;
    stream.write_all(b"\x04\x1a\x05READY\x0bSocket-Type\0\0\0\x04PUSH")?;
    // Greeting and READY of a PULL socket.
    let mut theirs = [0; 64 + 28];
    stream.read_exact(&mut theirs)?;
    Ok(stream)
}

/// A frame with `{"type": "ProxyNotif", "req_id": …}` in msgpack.
fn message(req_id: &str) -> Vec<u8> {
    let id = req_id.as_bytes();
    let length = u8::try_from(id.len()).unwrap_or(u8::MAX);
    let said =
        [b"\x82\xa4type\xaaProxyNotif\xa6req_id\xd9", &[length][..], &id[..usize::from(length)]].concat();
    [&[0, u8::try_from(said.len()).unwrap_or(u8::MAX)], &said[..]].concat()
}

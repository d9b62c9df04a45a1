//! The socket on which prefill workers say that they have handed over, each rank for itself. What is waited for wakes whoever
//! waits; anything else is counted and forgotten.

use std::io;

use forebay_workers::{PairSignals, Signalled};
use prometheus::{IntCounter, IntCounterVec, Opts, Registry};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::allow::Range;
use crate::hearing::{Hearing, Listener, Terms, Unheard};
use crate::zmtp::Socket;

/// Connections at a time: one for each rank of each prefill worker.
const CONNECTIONS: usize = 4096;

/// Nothing in a message is worth more levels.
const DEPTH: usize = 16;

/// What became of what was said.
#[derive(Clone)]
pub struct ReadinessMetrics {
    heard: [IntCounter; 3],
    unheard: [IntCounter; 4],
}

impl ReadinessMetrics {
    /// Registers them.
    ///
    /// # Errors
    /// They are registered already.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let family = IntCounterVec::new(
            Opts::new(
                "forebay_pd_readiness_total",
                "Messages of prefill workers' ranks that they have handed over, and connections for them, by what became of them.",
            ),
            &["result"],
        )?;
        registry.register(Box::new(family.clone()))?;
        let of = |result| family.with_label_values(&[result]);
        Ok(Self {
            heard: ["counted", "repeated", "unknown"].map(of),
            unheard: ["malformed", "refused", "too_many", "unfitting"].map(of),
        })
    }
}

/// Where prefill workers say that they have handed over.
pub struct Readiness {
    signals: PairSignals,
    metrics: ReadinessMetrics,
    allow: Vec<Range>,
}

impl Readiness {
    /// It wakes who waits at `signals`. Whom `allow` does not have is not listened to.
    pub fn new(signals: PairSignals, allow: Vec<Range>, metrics: ReadinessMetrics) -> Self {
        Self { signals, metrics, allow }
    }

    /// Listens until `stop`.
    ///
    /// # Errors
    /// The listener cannot be used.
    pub async fn run(
        self,
        listener: std::net::TcpListener,
        stop: CancellationToken,
        tasks: TaskTracker,
    ) -> io::Result<()> {
        let terms = Terms {
            socket: Socket::Pull,
            allow: self.allow.clone(),
            connections: CONNECTIONS,
            // What is sent into a connection that is closed at that moment is lost.
            patience: None,
        };
        Hearing { listener: self, terms, stop, tasks }.run(listener).await
    }
}

impl Listener for Readiness {
    fn hear(&self, message: &[u8], connection: u64) -> Result<(), (Unheard, String)> {
        let Some(id) = req_id(message) else {
            return Err((Unheard::Malformed, "it is no msgpack map with a req_id".to_owned()));
        };
        // Ids that are not of this router's form are somebody else's.
        let heard = match u128::from_str_radix(id, 16) {
            Ok(number) if id.len() == 32 => self.signals.heard(number, connection),
            _ => Signalled::Unknown,
        };
        self.metrics.heard[heard as usize].inc();
        Ok(())
    }

    fn count(&self, unheard: Unheard) -> u64 {
        let [malformed, refused, too_many, unfitting] = &self.metrics.unheard;
        let counter = match unheard {
            Unheard::Malformed => malformed,
            Unheard::Refused => refused,
            Unheard::TooMany => too_many,
            Unheard::Unfitting | Unheard::Taken => unfitting,
        };
        counter.inc();
        counter.get()
    }
}

/// The member that matters; others may be there.
#[derive(Deserialize)]
struct Wire<'a> {
    req_id: &'a str,
}

/// The id of the request whose blocks a rank has written, out of its message. Only of a map: the same member in a list would
/// be somebody else's message.
pub fn req_id(message: &[u8]) -> Option<&str> {
    if !matches!(message.first(), Some(0x80..=0x8f | 0xde | 0xdf)) {
        return None;
    }
    let mut reader = rmp_serde::Deserializer::from_read_ref(message);
    reader.set_max_depth(DEPTH);
    Wire::deserialize(&mut reader).ok().map(|wire| wire.req_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef";

    fn listener() -> Readiness {
        let metrics = ReadinessMetrics::new(&Registry::new()).unwrap();
        Readiness::new(PairSignals::default(), Range::usual(), metrics)
    }

    /// As `msgpack.dumps` of Python writes it.
    fn message(id: &str) -> Vec<u8> {
        let length = u8::try_from(id.len()).unwrap();
        [b"\x82\xa4type\xaaProxyNotif\xa6req_id\xd9", &[length][..], id.as_bytes()].concat()
    }

    #[test]
    fn what_is_waited_for_is_told_from_what_is_not() {
        let listener = listener();
        let _awaited = listener.signals.expect(u128::from_str_radix(ID, 16).unwrap(), 2);
        for (id, connection) in
            [(ID, 1), (ID, 1), (ID, 2), ("0", 1), ("other", 1), (&ID.replace('0', "1"), 1)]
        {
            assert_eq!(listener.hear(&message(id), connection), Ok(()));
        }
        let counts = listener.metrics.heard.each_ref().map(IntCounter::get);
        assert_eq!(counts, [2, 1, 3]);
    }

    #[test]
    fn what_is_no_message_of_the_kind_is_malformed() {
        let whole = message(ID);
        let cut = (0..whole.len()).map(|length| &whole[..length]);
        let others: [&[u8]; 5] = [b"", b"PING", b"\x91\xa1x", b"\x81\xa6req_id\x01", b"\xdf\xff\xff\xff\xff"];
        for message in cut.chain(others) {
            let heard = listener().hear(message, 1);
            assert!(matches!(heard, Err((Unheard::Malformed, _))), "{message:?}");
        }
    }
}

//! Signals of pairs: workers say under which id they have handed over, and wake the request that waits for it. Reads no
//! socket and no clock; it keeps nothing that nobody waits for.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Who waits for which id.
#[derive(Clone, Default)]
pub struct PairSignals {
    waiting: Arc<Mutex<HashMap<u128, Waiting>>>,
}

/// One that waits for as many ranks as there are.
struct Waiting {
    ranks: usize,
    /// Connections that have spoken: each rank has one of its own.
    heard: Vec<u64>,
    ready: Arc<Notify>,
}

/// A wait, which ends when this is dropped.
#[must_use = "whoever drops it does not wait any more"]
pub struct Awaited {
    signals: PairSignals,
    id: u128,
    ready: Arc<Notify>,
}

/// What a signal was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signalled {
    /// One that was waited for.
    Counted,
    /// That rank has said so before, or all have.
    Repeated,
    /// Nobody waits for it: it is late, or somebody else's.
    Unknown,
}

impl PairSignals {
    /// Waits from now on for `ranks` ranks to say this id, which nobody else waits for.
    pub fn expect(&self, id: u128, ranks: usize) -> Awaited {
        let ready = Arc::new(Notify::new());
        let waiting = Waiting { ranks, heard: Vec::with_capacity(ranks), ready: Arc::clone(&ready) };
        self.lock().insert(id, waiting);
        Awaited { signals: self.clone(), id, ready }
    }

    /// A rank has said this id on the connection of this number.
    pub fn heard(&self, id: u128, connection: u64) -> Signalled {
        let mut all = self.lock();
        let Entry::Occupied(mut waiting) = all.entry(id) else { return Signalled::Unknown };
        let waiting = waiting.get_mut();
        if waiting.heard.len() == waiting.ranks || waiting.heard.contains(&connection) {
            return Signalled::Repeated;
        }
        waiting.heard.push(connection);
        if waiting.heard.len() == waiting.ranks {
            waiting.ready.notify_one();
        }
        Signalled::Counted
    }

    /// Requests that wait, or have not gone on yet.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u128, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Awaited {
    /// Resolves when all ranks have spoken. Asked once.
    pub async fn ready(&self) {
        self.ready.notified().await;
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.signals.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn is_ready(awaited: &Awaited) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        pin!(awaited.ready()).poll(&mut context) == Poll::Ready(())
    }

    #[test]
    fn a_request_goes_on_when_each_rank_has_spoken_once() {
        let signals = PairSignals::default();
        let awaited = signals.expect(7, 2);
        assert_eq!(signals.heard(7, 1), Signalled::Counted);
        assert_eq!(signals.heard(7, 1), Signalled::Repeated, "the same rank");
        assert!(!is_ready(&awaited));
        assert_eq!(signals.heard(8, 2), Signalled::Unknown, "another request");
        assert_eq!(signals.heard(7, 2), Signalled::Counted);
        assert!(is_ready(&awaited));
        assert_eq!(signals.heard(7, 3), Signalled::Repeated, "all have spoken");
    }

    #[test]
    fn whoever_speaks_before_the_request_listens_is_heard_and_whoever_is_late_is_not() {
        let signals = PairSignals::default();
        let awaited = signals.expect(7, 1);
        signals.heard(7, 1);
        assert!(is_ready(&awaited));
        drop(awaited);
        assert_eq!((signals.heard(7, 1), signals.count()), (Signalled::Unknown, 0));
    }
}

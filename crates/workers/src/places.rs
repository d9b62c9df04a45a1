//! The bound on the requests in flight at each worker, and who waits for a place at any of them, in order. It reads no
//! clock: whoever waits decides for how long.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Places at workers, so many at each.
pub struct Places {
    most: u32,
    /// Length of the queue, to be read without its lock.
    waiting: AtomicUsize,
    queue: Mutex<VecDeque<Arc<Waiter>>>,
}

struct Waiter {
    /// Of the pool that it wants a place in.
    label: u32,
    /// It was called and has not looked since.
    is_called: AtomicBool,
    /// It has not looked at all, since somebody who was called before it came looks first.
    is_new: AtomicBool,
    call: Notify,
}

/// One that waits. It leaves the queue when this is dropped.
#[must_use = "whoever drops it does not wait any more"]
pub struct Ticket {
    places: Arc<Places>,
    waiter: Arc<Waiter>,
}

impl Places {
    pub(crate) fn new(most: u32) -> Self {
        Self { most, waiting: AtomicUsize::new(0), queue: Mutex::default() }
    }

    /// Most requests in flight at one worker.
    pub fn most(&self) -> u32 {
        self.most
    }

    /// Whether somebody waits for a place in the pool of this label, so that who comes now has to stand behind.
    pub fn is_awaited(&self, label: u32) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0 && self.lock().iter().any(|waiter| waiter.label == label)
    }

    /// Stands at the end of the queue. A place may have come free just before: look once more if that [`Ticket::may_look`],
    /// then wait.
    pub fn stand(self: &Arc<Self>, label: u32) -> Ticket {
        let mut queue = self.lock();
        let is_new = AtomicBool::new(queue.iter().any(|waiter| waiter.is_called.load(Ordering::SeqCst)));
        let waiter =
            Arc::new(Waiter { label, is_called: AtomicBool::new(false), is_new, call: Notify::new() });
        queue.push_back(Arc::clone(&waiter));
        drop(queue);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        // Whoever leaves from now on sees that somebody waits; whoever left before has left for the look that follows.
        fence(Ordering::SeqCst);
        Ticket { places: Arc::clone(self), waiter }
    }

    /// A place came free.
    pub(crate) fn freed(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.call_behind(None);
        }
    }

    /// More changed than one place.
    pub(crate) fn call_all(&self) {
        for waiter in self.lock().iter() {
            waiter.call();
        }
    }

    /// Calls the first one, or the first one behind `last`, that was not called yet.
    fn call_behind(&self, last: Option<&Arc<Waiter>>) {
        let queue = self.lock();
        let from = last.and_then(|last| queue.iter().position(|waiter| Arc::ptr_eq(waiter, last)));
        let mut behind = queue.iter().skip(from.map_or(0, |at| at + 1));
        if let Some(next) = behind.find(|waiter| !waiter.is_called.load(Ordering::SeqCst)) {
            next.call();
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Waiter>>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiter {
    fn call(&self) {
        self.is_called.store(true, Ordering::SeqCst);
        self.call.notify_one();
    }

    /// It is about to look.
    fn heard(&self) {
        self.is_called.store(false, Ordering::SeqCst);
        self.is_new.store(false, Ordering::SeqCst);
    }
}

impl Ticket {
    /// Resolves when it is worth looking for a place again.
    pub async fn called(&self) {
        self.waiter.call.notified().await;
        self.waiter.heard();
    }

    /// Whether it may look for a place before it is called. Not if somebody was called who has yet to look: the place that
    /// is free is theirs. It is called as soon as they have looked.
    pub fn may_look(&self) -> bool {
        !self.waiter.is_new.load(Ordering::SeqCst)
    }

    /// It leaves without a place: if it was called, the next one may look.
    pub fn leave(self) {
        self.waiter.is_called.store(true, Ordering::SeqCst);
    }

    /// The place that came free is of no use to this one: the next one may look.
    pub fn pass_on(&self) {
        self.places.call_behind(Some(&self.waiter));
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut queue = self.places.lock();
        queue.retain(|waiter| !Arc::ptr_eq(waiter, &self.waiter));
        self.places.waiting.store(queue.len(), Ordering::SeqCst);
        let is_waiting = |waiter: &&Arc<Waiter>| !waiter.is_called.load(Ordering::SeqCst);
        let mut new = queue.iter().filter(|waiter| waiter.is_new.load(Ordering::SeqCst)).filter(is_waiting);
        if let Some(next) = new.next() {
            next.call();
        }
        drop(queue);
        // Called again since it looked: that was for another place.
        if self.waiter.is_called.load(Ordering::SeqCst) {
            self.places.call_behind(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_called(ticket: &Ticket) -> bool {
        ticket.waiter.is_called.load(Ordering::SeqCst)
    }

    #[test]
    fn places_are_called_out_in_order_and_each_to_another() {
        let places = Arc::new(Places::new(1));
        let tickets: Vec<_> = (0..3).map(|_| places.stand(0)).collect();
        places.freed();
        places.freed();
        assert_eq!(tickets.iter().map(is_called).collect::<Vec<_>>(), [true, true, false]);
    }

    #[test]
    fn a_call_that_is_of_no_use_goes_to_the_next_and_one_that_is_not_heard_to_the_first() {
        let places = Arc::new(Places::new(1));
        let [first, second, third] = [0, 1, 0].map(|label| places.stand(label));
        places.freed();
        first.waiter.heard();
        first.pass_on();
        assert!(is_called(&second) && !is_called(&third));
        drop(second);
        assert!(is_called(&first), "nobody heard that call");
        assert!(places.is_awaited(0) && !places.is_awaited(1));
        drop((first, third));
        assert!(!places.is_awaited(0));
    }

    #[test]
    fn who_comes_while_another_is_called_looks_after_that_one() {
        let places = Arc::new(Places::new(1));
        let first = places.stand(0);
        assert!(first.may_look(), "nobody was called");
        places.freed();
        let [second, third] = [0, 0].map(|label| places.stand(label));
        assert!(!second.may_look() && !third.may_look(), "the place is the first one's");
        first.waiter.heard();
        drop(first);
        assert!(is_called(&second) && !is_called(&third), "there may have been two places");
        second.waiter.heard();
        assert!(second.may_look());
        second.pass_on();
        assert!(is_called(&third));
    }

    #[test]
    fn who_was_called_and_leaves_without_a_place_leaves_the_call_to_the_next() {
        let places = Arc::new(Places::new(1));
        let [first, second] = [0, 0].map(|label| places.stand(label));
        places.freed();
        first.waiter.heard();
        assert!(!is_called(&second));
        first.leave();
        assert!(is_called(&second));
    }
}

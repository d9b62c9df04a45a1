//! The record of decisions on its way to whoever writes it down: numbered in order, bounded, and never waited for.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus::IntCounter;

use crate::note::Note;

/// Longest time that a note waits for company before it is written, so that whoever notes seldom wakes anybody.
const GATHERING: Duration = Duration::from_millis(50);

/// A queue of notes between those who decide and the one who writes.
#[derive(Debug)]
pub struct Ledger {
    queue: Mutex<Queue>,
    wake: Condvar,
    /// Bytes of notes that may wait.
    room: usize,
    dropped: IntCounter,
}

#[derive(Debug, Default)]
struct Queue {
    notes: Vec<(u64, Note)>,
    bytes: usize,
    next: u64,
    closed: bool,
}

impl Ledger {
    /// An empty one. Notes of about `room` bytes may wait to be written; `dropped` counts those without room.
    pub fn new(room: usize, dropped: IntCounter) -> Self {
        let queue = Mutex::new(Queue::default());
        Self { queue, wake: Condvar::new(), room, dropped }
    }

    /// Takes a note and gives its number. If there is no room it is dropped and counted, and its number stays unused.
    pub fn note(&self, note: Note) -> u64 {
        let weight = note.weight();
        let mut queue = self.queue();
        let number = queue.next;
        queue.next += 1;
        if queue.bytes + weight > self.room || queue.closed {
            drop(queue);
            self.dropped.inc();
            return number;
        }
        queue.bytes += weight;
        queue.notes.push((number, note));
        if queue.bytes > self.room / 2 {
            self.wake.notify_one();
        }
        number
    }

    /// Waits for notes and takes all there are, with their numbers, in order. `None` after the end.
    pub fn take(&self) -> Option<Vec<(u64, Note)>> {
        let mut queue = self.queue();
        let enough = |queue: &mut Queue| !queue.closed && queue.bytes <= self.room / 2;
        (queue, _) =
            self.wake.wait_timeout_while(queue, GATHERING, enough).unwrap_or_else(PoisonError::into_inner);
        if queue.closed && queue.notes.is_empty() {
            return None;
        }
        queue.bytes = 0;
        Some(std::mem::take(&mut queue.notes))
    }

    /// No more notes are taken; what waits is still written.
    pub fn close(&self) {
        self.queue().closed = true;
        self.wake.notify_one();
    }

    /// Notes for which there was no room.
    pub fn dropped(&self) -> u64 {
        self.dropped.get()
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_policy::Slot;

    fn removed(slot: u32) -> Note {
        Note::Removed { slot: Slot(slot) }
    }

    fn with_room(room: usize) -> Ledger {
        Ledger::new(room, IntCounter::new("dropped", "x").unwrap())
    }

    fn numbers(ledger: &Ledger) -> Vec<u64> {
        ledger.take().unwrap().into_iter().map(|(number, _)| number).collect()
    }

    #[test]
    fn notes_come_out_in_order_with_their_numbers() {
        let ledger = with_room(10_000);
        for slot in 0..5 {
            assert_eq!(ledger.note(removed(slot)), u64::from(slot));
        }
        assert_eq!(numbers(&ledger), [0, 1, 2, 3, 4]);
        assert_eq!(numbers(&ledger), []);
    }

    #[test]
    fn what_has_no_room_is_dropped_and_counted_and_leaves_a_gap() {
        let ledger = with_room(3 * removed(0).weight());
        (0..5).for_each(|slot| _ = ledger.note(removed(slot)));
        assert_eq!((numbers(&ledger), ledger.dropped()), (vec![0, 1, 2], 2));
        ledger.note(removed(5));
        assert_eq!(numbers(&ledger), [5]);
    }

    #[test]
    fn the_end_comes_after_what_was_noted_before() {
        let ledger = with_room(10_000);
        ledger.note(removed(0));
        ledger.close();
        ledger.note(removed(1));
        assert_eq!((numbers(&ledger), ledger.dropped()), (vec![0], 1));
        assert!(ledger.take().is_none());
    }
}

//! A fleet of plain values for the tests of this crate.

use std::cell::Cell;

use crate::fleet::{Fleet, Slot};

#[derive(Clone, Debug)]
pub(crate) struct SampleWorker {
    pub(crate) slot: u32,
    pub(crate) name: String,
    pub(crate) rank: u32,
    pub(crate) group: u32,
    pub(crate) eligible: bool,
    pub(crate) in_flight: Cell<u32>,
    pub(crate) pending_tokens: Cell<u64>,
    pub(crate) cache_tokens: u64,
    pub(crate) served: Cell<u64>,
}

#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) workers: Vec<SampleWorker>,
    pub(crate) generation: u64,
}

impl Sample {
    pub(crate) fn new(len: u32) -> Self {
        Self::with_slots(&(0..len).collect::<Vec<_>>())
    }

    pub(crate) fn with_slots(slots: &[u32]) -> Self {
        let workers = slots
            .iter()
            .map(|&slot| SampleWorker {
                slot,
                name: format!("http://worker-{slot}:8000"),
                rank: 0,
                group: slot,
                eligible: true,
                in_flight: Cell::new(0),
                pending_tokens: Cell::new(0),
                cache_tokens: 0,
                served: Cell::new(0),
            })
            .collect();
        let generation =
            slots.iter().fold(1_u64, |sum, &slot| sum.wrapping_mul(31).wrapping_add(u64::from(slot) + 1));
        Self { workers, generation }
    }

    /// What the in-flight guard of a real fleet does when it is made.
    pub(crate) fn take(&self, index: usize) {
        let worker = &self.workers[index];
        worker.in_flight.set(worker.in_flight.get() + 1);
        worker.served.set(worker.served.get() + 1);
    }
}

impl Fleet for Sample {
    fn len(&self) -> usize {
        self.workers.len()
    }

    fn slot(&self, i: usize) -> Slot {
        Slot(self.workers[i].slot)
    }

    fn name(&self, i: usize) -> &str {
        &self.workers[i].name
    }

    fn rank(&self, i: usize) -> u32 {
        self.workers[i].rank
    }

    fn group(&self, i: usize) -> u32 {
        self.workers[i].group
    }

    fn eligible(&self, i: usize) -> bool {
        self.workers[i].eligible
    }

    fn in_flight(&self, i: usize) -> u32 {
        self.workers[i].in_flight.get()
    }

    fn pending_tokens(&self, i: usize) -> u64 {
        self.workers[i].pending_tokens.get()
    }

    fn cache_tokens(&self, i: usize) -> u64 {
        self.workers[i].cache_tokens
    }

    fn served(&self, i: usize) -> u64 {
        self.workers[i].served.get()
    }

    fn generation(&self) -> u64 {
        self.generation
    }
}

//! The workers that one request has tried, which are not chosen for it again. Decides nothing.

use forebay_policy::Slot;

/// The workers one request has tried. Empty for nearly every request, so it allocates only when used.
#[derive(Debug, Default)]
pub struct Tried(Vec<Slot>);

impl Tried {
    /// Notes a worker.
    pub fn add(&mut self, slot: Slot) {
        self.0.push(slot);
    }

    /// Whether it was tried.
    pub fn contains(&self, slot: Slot) -> bool {
        self.0.contains(&slot)
    }

    /// How many were tried.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

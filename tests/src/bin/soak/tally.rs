//! What was sent and what came of it, counted.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use crate::answers::Seen;

/// Wrong answers that are kept in full.
const KEPT: usize = 20;

/// Counts of all clients together.
#[derive(Default)]
pub(crate) struct Tally {
    sent: AtomicU64,
    seen: Mutex<Found>,
}

#[derive(Default)]
struct Found {
    counts: BTreeMap<String, u64>,
    wrong: u64,
    examples: Vec<String>,
}

impl Tally {
    /// A request goes out.
    pub(crate) fn sent(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    /// Requests that went out.
    pub(crate) fn all(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// What came of one.
    pub(crate) fn seen(&self, name: &str, seen: &Seen) {
        match seen {
            Seen::Right => self.count(&format!("{name} right")),
            Seen::Failed(machine) => self.count(&format!("{name} {machine}")),
            Seen::Cut => self.count(&format!("{name} cut")),
            Seen::Left => self.count(&format!("{name} left")),
            Seen::Wrong(what) => self.wrong(&format!("{name}: {what}")),
        }
    }

    /// Something that must never be.
    pub(crate) fn wrong(&self, what: &str) {
        let mut found = self.seen.lock().expect("no panic while it was held");
        found.wrong += 1;
        if found.examples.len() < KEPT {
            eprintln!("soak: WRONG: {what}");
            found.examples.push(what.to_owned());
        }
    }

    /// How many of those there were.
    pub(crate) fn wrongs(&self) -> u64 {
        self.seen.lock().expect("no panic while it was held").wrong
    }

    /// Everything, for another process to add.
    pub(crate) fn report(&self) -> Value {
        let found = self.seen.lock().expect("no panic while it was held");
        json!({"sent": self.all(), "counts": found.counts, "wrong": found.examples})
    }

    /// Adds what another process reported, under a name of its own.
    pub(crate) fn add(&self, under: &str, report: &Value) {
        self.sent.fetch_add(report["sent"].as_u64().unwrap_or(0), Ordering::Relaxed);
        for (name, count) in report["counts"].as_object().into_iter().flatten() {
            let mut found = self.seen.lock().expect("no panic while it was held");
            *found.counts.entry(format!("{under} {name}")).or_default() += count.as_u64().unwrap_or(0);
        }
        for what in report["wrong"].as_array().into_iter().flatten() {
            self.wrong(&format!("{under}: {what}"));
        }
    }

    /// One line per count.
    pub(crate) fn table(&self) -> String {
        let found = self.seen.lock().expect("no panic while it was held");
        found.counts.iter().map(|(name, count)| format!("  {count:>9}  {name}\n")).collect()
    }

    fn count(&self, name: &str) {
        let mut found = self.seen.lock().expect("no panic while it was held");
        *found.counts.entry(name.to_owned()).or_default() += 1;
    }
}

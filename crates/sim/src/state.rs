//! What one worker is at a moment: its switches, engine, adapters and stored answers. It answers nothing by itself.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use crate::answer::HeadStyle;
use crate::counters::Counters;
use crate::engine::{Admission, hash, mix};
use crate::faults::Faults;
use crate::gates::{Gates, HoldGate};
use crate::lock::Held;
use crate::notices::Notices;
use crate::options::{Lora, Mode, WorkerOptions};
use crate::pairs::{Handing, PairRole};
use crate::ranks::Engines;
use crate::record::Recorder;

/// Answers kept for `GET /v1/responses/{id}`.
const STORED_RESPONSES: usize = 1024;

/// Whether the worker takes prompts.
#[derive(Debug, Default)]
pub(crate) enum Pause {
    #[default]
    No,
    /// New requests get 503.
    Refuse,
    /// New requests wait at the gate.
    Queue {
        #[expect(dead_code, reason = "held for its Drop, which opens the gate")]
        gate: HoldGate,
    },
}

/// A response kept by its id.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) id: String,
    pub(crate) json: String,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) options: WorkerOptions,
    pub(crate) style: HeadStyle,
    /// Unix time of the start in seconds: every answer was "created" then, so that equal requests get equal answers.
    pub(crate) created: u64,
    pub(crate) counters: Counters,
    pub(crate) faults: Faults,
    pub(crate) gates: Arc<Gates>,
    pub(crate) recorder: Recorder,
    /// One for each data-parallel rank.
    pub(crate) engine: Mutex<Engines>,
    /// Name of the base model that it serves now.
    base: Mutex<Arc<str>>,
    pub(crate) loras: Mutex<Vec<Lora>>,
    pub(crate) stored: Mutex<VecDeque<Stored>>,
    pub(crate) health: AtomicU16,
    /// Bits of [`SLEEPING`]: what has not been woken yet.
    asleep: AtomicU8,
    pub(crate) pause: Mutex<Pause>,
    started: Instant,
    ids: AtomicU64,
    id_seed: u64,
    /// Under which it hands blocks over.
    pub(crate) engine_name: Option<String>,
    /// Who says that it has written them.
    pub(crate) notices: Option<Notices>,
}

/// What sleeps and wakes apart, by its tag.
const SLEEPING: [(&str, u8); 2] = [("weights", 1), ("kv_cache", 2)];

impl State {
    pub(crate) fn is_asleep(&self) -> bool {
        self.asleep.load(Relaxed) != 0
    }

    pub(crate) fn sleep(&self) {
        self.asleep.store(SLEEPING.iter().fold(0, |all, (_, bit)| all | bit), Relaxed);
    }

    /// Wakes what has this tag; all without one.
    pub(crate) fn wake(&self, tag: Option<&str>) {
        let wakes = SLEEPING.iter().filter(|(name, _)| tag.is_none_or(|tag| tag == *name));
        self.asleep.fetch_and(!wakes.fold(0, |all, (_, bit)| all | bit), Relaxed);
    }

    pub(crate) fn new(options: WorkerOptions, port: u16) -> Self {
        let worker = options.id.clone().unwrap_or_else(|| format!("sim-{port}"));
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let engine = match options.mode {
            Mode::Engine => options.engine,
            Mode::Instant { .. } | Mode::Recording => options.engine.without_delay(),
        };
        Self {
            id_seed: hash(worker.as_bytes(), created),
            style: HeadStyle { worker, date: http_date(created) },
            created,
            counters: Counters::default(),
            faults: Faults::default(),
            gates: Arc::default(),
            recorder: Recorder::new(options.record),
            engine: Mutex::new(Engines::new(options.ranks.clone(), engine)),
            base: Mutex::new(options.model.as_str().into()),
            loras: Mutex::new(options.loras.clone()),
            stored: Mutex::default(),
            health: AtomicU16::new(200),
            asleep: AtomicU8::new(0),
            pause: Mutex::default(),
            started: Instant::now(),
            ids: AtomicU64::new(0),
            engine_name: options.pair.as_ref().map(|pair| pair.exchange.join()),
            notices: options.pair.as_ref().and_then(|pair| match pair.handing {
                Handing::Disagg { speech, .. } if pair.role == PairRole::Prefill => {
                    Some(Notices::new(speech))
                }
                _ => None,
            }),
            options,
        }
    }

    /// Nanoseconds since the start, the engine's clock.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// When the engine's clock shows `nanos`.
    pub(crate) fn instant(&self, nanos: u64) -> Instant {
        self.started + Duration::from_nanos(nanos)
    }

    /// A fresh id of 16 hex digits, different between workers.
    pub(crate) fn fresh_id(&self) -> String {
        format!("{:016x}", mix(self.id_seed ^ self.ids.fetch_add(1, Relaxed)))
    }

    /// Name of the base model.
    pub(crate) fn model(&self) -> Arc<str> {
        Arc::clone(&self.base.held())
    }

    /// It is another worker from now on, with this base model and nothing in its cache.
    pub(crate) fn become_another(&self, model: &str) {
        *self.base.held() = model.into();
        self.loras.held().clear();
        self.clear_cache();
    }

    /// The base model or an adapter of this name; no name means the base model.
    pub(crate) fn serves(&self, model: Option<&str>) -> bool {
        model.is_none_or(|model| {
            *model == *self.model() || self.loras.held().iter().any(|lora| lora.name == model)
        })
    }

    pub(crate) fn store(&self, stored: Stored) {
        let mut all = self.stored.held();
        if all.len() == STORED_RESPONSES {
            all.pop_front();
        }
        all.push_back(stored);
    }

    /// The engine is gone, and with it the blocks that it held for others.
    pub(crate) fn leave(&self) {
        if let (Some(pair), Some(engine)) = (&self.options.pair, &self.engine_name) {
            pair.exchange.leave(engine);
        }
    }

    /// Makes the worker forget prompts computed so far.
    pub(crate) fn clear_cache(&self) {
        self.engine.held().clear_cache();
    }
}

/// A request's places in the engine: given back early if its client leaves.
pub(crate) struct InEngine<'a> {
    state: &'a State,
    admissions: Vec<Admission>,
}

impl<'a> InEngine<'a> {
    pub(crate) fn new(state: &'a State, admissions: Vec<Admission>) -> Self {
        Self { state, admissions }
    }

    /// The tokens were sent: the engine's own times stand.
    pub(crate) fn finish(mut self) {
        self.admissions.clear();
    }
}

impl Drop for InEngine<'_> {
    fn drop(&mut self) {
        if self.admissions.is_empty() {
            return;
        }
        let now = self.state.now();
        let mut engine = self.state.engine.held();
        self.admissions.iter().for_each(|admission| engine.abort(admission, now));
    }
}

/// A Unix time as HTTP writes it.
fn http_date(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    // Days since 1 March of year 0, so that leap days come last in their year.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = (shifted_month + 2) % 12;
    let year = era * 400 + year_of_era + u64::from(month < 2);
    format!(
        "{}, {day:02} {} {year} {:02}:{:02}:{:02} GMT",
        DAYS[(days % 7) as usize],
        MONTHS[month as usize],
        time / 3600,
        time / 60 % 60,
        time % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_as_http_wants_them() {
        assert_eq!(http_date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(http_date(951_782_400), "Tue, 29 Feb 2000 00:00:00 GMT");
        assert_eq!(http_date(1_795_173_869), "Fri, 20 Nov 2026 11:24:29 GMT");
    }
}

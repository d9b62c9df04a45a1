//! Whether a request gets another attempt: which answers are worth one, what they may cost, how long to wait. It talks
//! to nobody.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use http::{HeaderMap, StatusCode, header};

/// Knobs of retries.
#[derive(Debug, Clone, PartialEq)]
pub struct RetrySettings {
    /// Attempts in all, at least 1. Workers that cannot be reached do not count.
    pub attempts: u32,
    /// Without it there is one attempt, whatever comes of it.
    pub enabled: bool,
    /// Wait before workers that were busy are asked for the second time.
    pub initial_backoff: Duration,
    /// Longest such wait.
    pub max_backoff: Duration,
    /// Each wait is so many times the one before. At least 1.
    pub multiplier: f64,
    /// Share of a wait, from 0 to 1, by which it is longer or shorter at random.
    pub jitter: f64,
}

impl Default for RetrySettings {
    fn default() -> Self {
        Self {
            attempts: 5,
            enabled: true,
            initial_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_secs(30),
            multiplier: 1.5,
            jitter: 0.2,
        }
    }
}

impl RetrySettings {
    /// Attempts in all that may be spent on what workers answer.
    pub(crate) fn limit(&self) -> u32 {
        if self.enabled { self.attempts } else { 1 }
    }

    /// The wait before round `round` of asking workers again, from 1. `unit` is a random number from 0 to 1.
    pub(crate) fn backoff(&self, round: u32, unit: f64) -> Duration {
        let grown =
            self.initial_backoff.as_secs_f64() * self.multiplier.powi(i32::try_from(round).unwrap_or(0) - 1);
        let wait = grown.min(self.max_backoff.as_secs_f64()) * (1.0 + self.jitter * (2.0 * unit - 1.0));
        Duration::try_from_secs_f64(wait).unwrap_or(self.max_backoff)
    }
}

/// What the status of an answer makes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Again {
    /// It is the answer.
    No,
    /// The worker is busy: another one is asked, and this one again after a wait.
    Busy,
    /// The worker failed: another one is asked.
    Failed,
    /// It may be the request's fault: one other worker is asked, to tell.
    Doubtful,
    /// The worker does not serve the model any more: one other is asked.
    Unserved,
}

impl Again {
    pub(crate) fn of(status: StatusCode) -> Self {
        match status.as_u16() {
            429 | 503 => Self::Busy,
            502 | 504 => Self::Failed,
            500 => Self::Doubtful,
            _ => Self::No,
        }
    }

    /// The reason in the count of retries.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::No => "none",
            Self::Busy => "busy",
            Self::Failed => "failed",
            Self::Doubtful => "internal_error",
            Self::Unserved => "unserved",
        }
    }
}

/// Whether the worker said itself how long it wants to be left alone.
pub(crate) fn asks_for_patience(headers: &HeaderMap) -> bool {
    headers.contains_key(header::RETRY_AFTER)
}

/// Longest time that a worker is left alone, whatever it asks for: nobody can call it back.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// For how long a busy worker wants to be left alone, if it said so: in seconds, or as a date. A date is read by the
/// worker's own clock, which its answer tells: nobody knows how far that is from the clock here.
pub(crate) fn pause(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name)?.to_str().ok().map(str::trim);
    let asked = text(header::RETRY_AFTER)?;
    let pause = match asked.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let date = |text| httpdate::parse_http_date(text).ok();
            date(asked)?.duration_since(date(text(header::DATE)?)?).ok()?
        }
    };
    (!pause.is_zero()).then(|| pause.min(LONGEST_PAUSE))
}

/// What retries of answers may cost: a tenth of the traffic, so that they never make an overload worse. One for each
/// data thread.
pub(crate) struct Budget {
    saved: AtomicI64,
    /// The trial that it was saved up in.
    epoch: AtomicU64,
}

/// Price of a retry, in requests.
const PRICE: i64 = 10;

/// Most that is saved up.
const MOST: i64 = 100 * PRICE;

/// What every second adds, so that a quiet service may retry too.
const EACH_SECOND: i64 = 10 * PRICE;

impl Default for Budget {
    fn default() -> Self {
        Self { saved: AtomicI64::new(EACH_SECOND), epoch: AtomicU64::new(0) }
    }
}

impl Budget {
    /// A request of this trial came. A new trial begins with a new budget.
    pub(crate) fn earn(&self, epoch: u64) {
        if self.epoch.load(Ordering::Relaxed) < epoch {
            self.epoch.store(epoch, Ordering::Relaxed);
            self.saved.store(EACH_SECOND, Ordering::Relaxed);
        }
        self.add(1);
    }

    /// A second has passed.
    pub(crate) fn refill(&self) {
        self.add(EACH_SECOND);
    }

    /// Pays for a retry; false if there is not enough.
    pub(crate) fn pay(&self) -> bool {
        let enough = self.saved.load(Ordering::Relaxed) >= PRICE;
        if enough {
            self.saved.fetch_sub(PRICE, Ordering::Relaxed);
        }
        enough
    }

    /// There was nobody to retry with.
    pub(crate) fn give_back(&self) {
        self.add(PRICE);
    }

    /// Only the data thread itself writes, so that two steps are as good as one.
    fn add(&self, amount: i64) {
        let saved = self.saved.load(Ordering::Relaxed);
        self.saved.store((saved + amount).min(MOST), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_of_answers_cost_a_tenth_of_the_traffic() {
        let budget = Budget::default();
        budget.earn(1);
        while budget.pay() {}
        let retried = (0..1000).filter(|_| {
            budget.earn(1);
            budget.pay()
        });
        assert_eq!(retried.count(), 100);
    }

    #[test]
    fn a_new_trial_begins_with_a_new_budget() {
        let budget = Budget::default();
        budget.earn(1);
        while budget.pay() {}
        budget.earn(1);
        assert!(!budget.pay());
        budget.earn(2);
        assert_eq!((0..100).filter(|_| budget.pay()).count(), 10);
    }

    #[test]
    fn a_worker_is_left_alone_for_as_long_as_it_says_within_reason() {
        let asked = |value: &'static str| {
            pause(&HeaderMap::from_iter([(header::RETRY_AFTER, http::HeaderValue::from_static(value))]))
        };
        assert_eq!(asked("7"), Some(Duration::from_secs(7)));
        assert_eq!(asked("86400"), Some(LONGEST_PAUSE));
        for nothing in ["0", "-1", "soon", "Wed, 21 Oct 2026 07:28:00 GMT"] {
            assert_eq!(asked(nothing), None);
        }
    }

    #[test]
    fn a_date_is_read_by_the_clock_of_whoever_wrote_it() {
        let asked = |until: &'static str| {
            let now = http::HeaderValue::from_static("Wed, 21 Oct 2026 07:28:00 GMT");
            let until = http::HeaderValue::from_static(until);
            pause(&HeaderMap::from_iter([(header::RETRY_AFTER, until), (header::DATE, now)]))
        };
        assert_eq!(asked("Wed, 21 Oct 2026 07:28:09 GMT"), Some(Duration::from_secs(9)));
        assert_eq!(asked("Thu, 22 Oct 2026 07:28:00 GMT"), Some(LONGEST_PAUSE));
        for nothing in ["Wed, 21 Oct 2026 07:28:00 GMT", "Wed, 21 Oct 2026 07:27:59 GMT", "21 Oct 2026"] {
            assert_eq!(asked(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn savings_are_bounded() {
        let budget = Budget::default();
        (0..100).for_each(|_| budget.refill());
        assert_eq!((0..1000).filter(|_| budget.pay()).count(), 100);
    }

    #[test]
    fn waits_grow_to_their_limit_and_vary() {
        let settings = RetrySettings { max_backoff: Duration::from_millis(100), ..RetrySettings::default() };
        let waits: Vec<_> = (1..6).map(|round| settings.backoff(round, 0.5).as_millis()).collect();
        assert_eq!(waits, [50, 75, 100, 100, 100]);
        assert_eq!(settings.backoff(1, 0.0), Duration::from_millis(40));
        assert_eq!(settings.backoff(1, 1.0), Duration::from_millis(60));
    }
}

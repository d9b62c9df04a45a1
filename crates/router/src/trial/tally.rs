//! The counts of one trial, as far as one data thread has them. Adds up; judges nothing.

use std::sync::Arc;
use std::time::Duration;

use forebay_policy::{Choice, Reason};
use forebay_workers::{Changes, Worker};
use hdrhistogram::Histogram;

use crate::account::Account;
use crate::outcome::Outcome;
use crate::report::predicted_cached;
use crate::trial::pairs::PairTally;

/// Longest time that is told apart from longer ones, in µs: an hour.
const LONGEST: u64 = 3_600_000_000;

/// Digits that are kept of a time: quantiles are off by less than [`RELATIVE_ERROR`].
const DIGITS: u8 = 2;

/// By how much of itself a quantile may be off.
pub(crate) const RELATIVE_ERROR: f64 = 0.01;

/// How long things took. `None` would take bounds that are not valid, which a test rules out.
#[derive(Clone)]
pub(crate) struct Spread(pub(crate) Option<Histogram<u32>>);

/// The counts of one trial.
#[derive(Clone)]
pub(crate) struct Tally {
    pub epoch: u64,
    /// What had happened to the fleet up to the first request.
    pub before: Option<Changes>,
    /// By model and outcome.
    pub models: ByModel,
    /// Most requests that were under way at the same time. Parts of different threads add up to a bound: each may have had
    /// its most at another time.
    pub peak: u64,
    /// By the slot of the worker that was asked last.
    pub workers: Vec<Option<WorkerTally>>,
    /// Attempts after the first.
    pub retries: u64,
    pub prefix: Prefix,
    pub cache: Cache,
    pub tokens: Tokens,
    pub stripped: Vec<(&'static str, u64)>,
    pub pairs: PairTally,
    pub times: Times,
}

/// Of the requests that a worker was the last to be asked for, in its role.
#[derive(Clone)]
pub(crate) struct WorkerTally {
    pub worker: Arc<Worker>,
    pub requests: u64,
    pub reasons: [u64; Reason::ALL.len()],
}

/// Of choices that looked at the prompt: bytes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Prefix {
    pub choices: u64,
    pub bytes: u64,
    pub matched: u64,
}

/// Of answers that told how many tokens of the prompt were cached.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cache {
    pub answers: u64,
    pub prompt: u64,
    pub predicted: u64,
    pub reported: u64,
}

/// Of answers that told their tokens.
#[derive(Clone, Copy, Default)]
pub(crate) struct Tokens {
    pub answers: u64,
    pub prompt: u64,
    pub completion: u64,
    /// Answers that told how many tokens of the prompt were cached, with or without a prediction.
    pub cached_answers: u64,
    pub cached: u64,
}

/// How long what took.
#[derive(Clone, Default)]
pub(crate) struct Times {
    /// From the request's head to the first byte of the answer's body.
    pub first_byte: Spread,
    /// From the request's head to the first record of a stream.
    pub first_token: Spread,
    /// Between two reads of one stream.
    pub gap: Spread,
    /// From the request's head to its end.
    pub whole: Spread,
}

impl Tally {
    pub(crate) fn new(epoch: u64) -> Self {
        Self {
            epoch,
            before: None,
            models: Vec::new(),
            peak: 0,
            workers: Vec::new(),
            retries: 0,
            prefix: Prefix::default(),
            cache: Cache::default(),
            tokens: Tokens::default(),
            stripped: Vec::new(),
            pairs: PairTally::default(),
            times: Times::default(),
        }
    }

    /// A request has ended.
    pub(crate) fn count(&mut self, account: &Account) {
        self.outcomes(account)[account.outcome as usize] += 1;
        self.times.whole.record(account.took);
        if let Some(took) = account.first_byte {
            self.times.first_byte.record(took);
        }
        if let Some(took) = account.first_token.filter(|_| account.streamed) {
            self.times.first_token.record(took);
        }
        for field in &account.stripped {
            self.note_stripped(field, 1);
        }
        self.retries += u64::from(account.attempts.count.saturating_sub(1));
        if let Some(pair) = account.attempts.pair {
            self.pairs.count(pair);
        }
        self.told(account);
        if let Some(choice) = account.attempts.last {
            self.prompted(&choice);
            self.chosen(account, &choice);
        }
        if let Some(choice) = account.attempts.prefill {
            self.chosen(account, &choice);
        }
    }

    fn outcomes(&mut self, account: &Account) -> &mut [u64; Outcome::ALL.len()] {
        let model = account.model.as_deref().unwrap_or_default();
        let at = self.models.iter().position(|(known, _)| **known == *model).unwrap_or_else(|| {
            self.models.push((model.into(), [0; Outcome::ALL.len()]));
            self.models.len() - 1
        });
        &mut self.models[at].1
    }

    fn note_stripped(&mut self, field: &'static str, count: u64) {
        match self.stripped.iter_mut().find(|(known, _)| *known == field) {
            Some((_, sum)) => *sum += count,
            None => self.stripped.push((field, count)),
        }
    }

    fn told(&mut self, account: &Account) {
        let Some(prompt) = account.tokens.prompt_tokens else { return };
        self.tokens.answers += 1;
        self.tokens.prompt += prompt;
        self.tokens.completion += account.tokens.completion_tokens.unwrap_or(0);
        let Some(reported) = account.tokens.cached_tokens else { return };
        self.tokens.cached_answers += 1;
        self.tokens.cached += reported;
        if let Some(choice) = account.attempts.last.filter(|choice| choice.key_len > 0) {
            self.cache.answers += 1;
            self.cache.prompt += prompt;
            self.cache.predicted += predicted_cached(&choice, prompt);
            self.cache.reported += reported;
        }
    }

    fn prompted(&mut self, choice: &Choice) {
        if choice.key_len > 0 {
            self.prefix.choices += 1;
            self.prefix.bytes += u64::from(choice.key_len);
            self.prefix.matched += u64::from(choice.matched.min(choice.key_len));
        }
    }

    fn chosen(&mut self, account: &Account, choice: &Choice) {
        let at = choice.slot.0 as usize;
        if self.workers.len() <= at {
            self.workers.resize(at + 1, None);
        }
        let known = &mut self.workers[at];
        if known.is_none() {
            let made = account.chosen(choice).map(|worker| WorkerTally {
                worker: Arc::clone(worker),
                requests: 0,
                reasons: [0; Reason::ALL.len()],
            });
            *known = made;
        }
        if let Some(known) = known {
            known.requests += 1;
            known.reasons[choice.reason as usize] += 1;
        }
    }

    /// Adds what another thread has of the same trial.
    pub(crate) fn add(&mut self, other: &Self) {
        self.before = [self.before, other.before].into_iter().flatten().min();
        self.peak += other.peak;
        add_models(&mut self.models, &other.models);
        self.workers.resize(self.workers.len().max(other.workers.len()), None);
        for (sums, counts) in self.workers.iter_mut().zip(&other.workers) {
            match (sums, counts) {
                (Some(sums), Some(counts)) => {
                    sums.requests += counts.requests;
                    add_all(&mut sums.reasons, &counts.reasons);
                }
                (sums @ None, counts) => sums.clone_from(counts),
                (Some(_), None) => {}
            }
        }
        self.retries += other.retries;
        self.prefix.add(other.prefix);
        self.cache.add(other.cache);
        self.tokens.add(other.tokens);
        for (field, count) in &other.stripped {
            self.note_stripped(field, *count);
        }
        self.pairs.add(&other.pairs);
        self.times.add(&other.times);
    }
}

/// Requests by model and outcome.
pub(crate) type ByModel = Vec<(Arc<str>, [u64; Outcome::ALL.len()])>;

/// Adds what another thread has of the same trial.
pub(crate) fn add_models(sums: &mut ByModel, other: &ByModel) {
    for (model, outcomes) in other {
        match sums.iter_mut().find(|(known, _)| known == model) {
            Some((_, sums)) => add_all(sums, outcomes),
            None => sums.push((Arc::clone(model), *outcomes)),
        }
    }
}

fn add_all<const N: usize>(sums: &mut [u64; N], counts: &[u64; N]) {
    for (sum, count) in sums.iter_mut().zip(counts) {
        *sum += count;
    }
}

impl Prefix {
    fn add(&mut self, other: Self) {
        self.choices += other.choices;
        self.bytes += other.bytes;
        self.matched += other.matched;
    }
}

impl Cache {
    fn add(&mut self, other: Self) {
        self.answers += other.answers;
        self.prompt += other.prompt;
        self.predicted += other.predicted;
        self.reported += other.reported;
    }
}

impl Tokens {
    fn add(&mut self, other: Self) {
        self.answers += other.answers;
        self.prompt += other.prompt;
        self.completion += other.completion;
        self.cached_answers += other.cached_answers;
        self.cached += other.cached;
    }
}

impl Times {
    fn add(&mut self, other: &Self) {
        self.first_byte.add(&other.first_byte);
        self.first_token.add(&other.first_token);
        self.gap.add(&other.gap);
        self.whole.add(&other.whole);
    }
}

impl Default for Spread {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST, DIGITS).ok())
    }
}

impl Spread {
    pub(crate) fn record(&mut self, took: Duration) {
        if let Some(histogram) = &mut self.0 {
            histogram.saturating_record(u64::try_from(took.as_micros()).unwrap_or(LONGEST).max(1));
        }
    }

    fn add(&mut self, other: &Self) {
        if let (Some(sum), Some(part)) = (&mut self.0, &other.0) {
            // Both have the same bounds, so that everything fits.
            let _fits = sum.add(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_the_stated_error_from_a_microsecond_to_an_hour() {
        let mut micros = 1;
        while micros < LONGEST {
            let mut spread = Spread::default();
            spread.record(Duration::from_micros(micros));
            let read = spread.0.unwrap().value_at_quantile(0.5) as f64;
            assert!((read / micros as f64 - 1.0).abs() < RELATIVE_ERROR, "{micros} {read}");
            micros += micros / 3 + 1;
        }
        let mut spread = Spread::default();
        spread.record(Duration::from_secs(100_000));
        assert!(spread.0.unwrap().max() >= LONGEST, "what is longer counts as the longest");
    }

    #[test]
    fn parts_add_up() {
        let (mut one, mut other) = (Tally::new(1), Tally::new(1));
        one.models.push(("m".into(), [1; Outcome::ALL.len()]));
        other.models.push(("n".into(), [2; Outcome::ALL.len()]));
        other.models.push(("m".into(), [3; Outcome::ALL.len()]));
        (one.before, other.before) = (None, Some(Changes { fleet: 4, caches: 1 }));
        one.note_stripped("x", 1);
        other.note_stripped("x", 2);
        other.times.gap.record(Duration::from_millis(1));
        one.add(&other);
        assert_eq!(one.models.iter().map(|(_, counts)| counts[0]).collect::<Vec<_>>(), [4, 2]);
        assert_eq!((one.before, &one.stripped[..]), (Some(Changes { fleet: 4, caches: 1 }), &[("x", 3)][..]));
        assert_eq!(one.times.gap.0.unwrap().len(), 1);
    }
}

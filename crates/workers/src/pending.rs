//! What a worker has yet to prefill of what it was given, and how fast it is at that. Time is an argument.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Fewer tokens than this take no time that could be told from everything else that takes time.
const TELLING: u64 = 256;

/// Weight of one request in the pace.
const WEIGHT: f32 = 1.0 / 16.0;

/// Tokens that are still to be prefilled.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// Of requests whose first token will be seen, and of all as long as the pace is not known.
    seen: AtomicU64,
    /// When those whose first token nobody sees will be done, one after the other, in µs on the caller's clock.
    blind_until: AtomicU64,
}

/// One request's part of [`Pending`]. Whoever has it gives it back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// So many tokens.
    Seen(u64),
    /// So many µs.
    Blind(u64),
}

/// Tokens a worker prefills in a second, learnt.
#[derive(Debug)]
pub(crate) struct Pace {
    /// The trial whose requests it learns from.
    epoch: AtomicU64,
    /// Means of tokens and seconds, as the bits of two `f32`. As long as nothing is learnt, [`NOTHING`] and the epoch: so
    /// that a request which looked before a reset cannot write after it.
    bits: AtomicU64,
}

/// Set where nothing is learnt yet: the sign of the mean of tokens, which is never negative.
const NOTHING: u64 = 1 << 63;

impl Default for Pace {
    fn default() -> Self {
        Self { epoch: AtomicU64::new(1), bits: AtomicU64::new(NOTHING | 1) }
    }
}

impl Pending {
    /// Tokens to prefill at `now_us`.
    pub(crate) fn tokens(&self, now_us: u64, pace: &Pace) -> u64 {
        let left = self.blind_until.load(Ordering::Relaxed).saturating_sub(now_us);
        let blind = if left == 0 { 0 } else { pace.tokens_in(left) };
        self.seen.load(Ordering::Relaxed).saturating_add(blind)
    }

    /// Adds a request. Without a known pace its share stays until it is given back.
    pub(crate) fn add(&self, tokens: u64, is_seen: bool, now_us: u64, pace: &Pace) -> Share {
        match pace.micros_for(tokens) {
            Some(micros) if !is_seen => {
                let later = |until: u64| Some(until.max(now_us).saturating_add(micros));
                let _last = self.blind_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
                Share::Blind(micros)
            }
            _ => {
                self.seen.fetch_add(tokens, Ordering::Relaxed);
                Share::Seen(tokens)
            }
        }
    }

    /// Takes a request out: it is prefilled, or will not be.
    pub(crate) fn give_back(&self, share: &mut Share) {
        match std::mem::replace(share, Share::Seen(0)) {
            Share::Seen(0) => {}
            Share::Seen(tokens) => {
                self.seen.fetch_sub(tokens, Ordering::Relaxed);
            }
            Share::Blind(micros) => {
                // Where time has passed over it there is less to take: what others are thought to need may come out too
                // small by that, and never too large.
                let sooner = |until: u64| Some(until.saturating_sub(micros));
                let _last = self.blind_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sooner);
            }
        }
    }
}

impl Pace {
    /// So many tokens were to be prefilled until the first token of a request of this epoch, which took so long.
    pub(crate) fn learn(&self, epoch: u64, tokens: u64, took: Duration) {
        if tokens < TELLING || took.is_zero() {
            return;
        }
        let known = self.bits.load(Ordering::SeqCst);
        if self.epoch.load(Ordering::SeqCst) != epoch {
            return;
        }
        let (tokens, seconds) = (tokens as f32, took.as_secs_f32());
        let learnt = match means(known) {
            None => (tokens, seconds),
            Some((mean, time)) => (mean + (tokens - mean) * WEIGHT, time + (seconds - time) * WEIGHT),
        };
        let bits = u64::from(learnt.0.to_bits()) << 32 | u64::from(learnt.1.to_bits());
        // One of two that come at once is lost, and so is one that a reset came before.
        let _stored = self.bits.compare_exchange(known, bits, Ordering::SeqCst, Ordering::Relaxed);
    }

    /// A new trial begins: forgets what was learnt.
    pub(crate) fn reset(&self, epoch: u64) {
        self.carry(epoch);
        self.bits.store(NOTHING | epoch, Ordering::SeqCst);
    }

    /// A new trial begins with what is known; requests of the old one teach nothing any more.
    pub(crate) fn carry(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::SeqCst);
    }

    /// Tokens in a second, if known.
    pub(crate) fn per_second(&self) -> Option<f64> {
        means(self.bits.load(Ordering::Relaxed))
            .map(|(tokens, seconds)| f64::from(tokens) / f64::from(seconds))
    }

    fn tokens_in(&self, micros: u64) -> u64 {
        self.per_second().map_or(0, |pace| (pace * micros as f64 / 1e6) as u64)
    }

    fn micros_for(&self, tokens: u64) -> Option<u64> {
        self.per_second().map(|pace| (tokens as f64 / pace * 1e6) as u64)
    }
}

fn means(bits: u64) -> Option<(f32, f32)> {
    let means = (f32::from_bits((bits >> 32) as u32), f32::from_bits(bits as u32));
    (bits & NOTHING == 0).then_some(means)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paced() -> Pace {
        let pace = Pace::default();
        pace.learn(1, 10_000, Duration::from_secs(1));
        pace
    }

    #[test]
    fn a_share_that_is_seen_stays_until_it_is_given_back() {
        let (pending, pace) = (Pending::default(), paced());
        let mut share = pending.add(500, true, 0, &pace);
        assert_eq!(pending.tokens(60_000_000, &pace), 500);
        pending.give_back(&mut share);
        pending.give_back(&mut share);
        assert_eq!(pending.tokens(0, &pace), 0);
    }

    #[test]
    fn blind_shares_decay_one_after_the_other_at_the_pace_of_the_worker() {
        let (pending, pace) = (Pending::default(), paced());
        let shares: Vec<_> = (0..3).map(|_| pending.add(1000, false, 1_000_000, &pace)).collect();
        assert!(shares.iter().all(|share| *share == Share::Blind(100_000)));
        assert_eq!(pending.tokens(1_000_000, &pace), 3000);
        assert_eq!(pending.tokens(1_150_000, &pace), 1500);
        assert_eq!(pending.tokens(1_300_000, &pace), 0);
        let _late = pending.add(1000, false, 9_000_000, &pace);
        assert_eq!(pending.tokens(9_000_000, &pace), 1000);
    }

    #[test]
    fn a_blind_request_that_ends_early_gives_its_share_back() {
        let (pending, pace) = (Pending::default(), paced());
        let mut first = pending.add(1000, false, 0, &pace);
        let _second = pending.add(1000, false, 0, &pace);
        pending.give_back(&mut first);
        assert_eq!(pending.tokens(0, &pace), 1000);
    }

    #[test]
    fn without_a_known_pace_nothing_decays() {
        let (pending, pace) = (Pending::default(), Pace::default());
        let mut share = pending.add(1000, false, 0, &pace);
        assert_eq!(pending.tokens(60_000_000, &pace), 1000);
        pace.learn(1, 10_000, Duration::from_secs(1));
        pending.give_back(&mut share);
        assert_eq!(pending.tokens(0, &pace), 0);
    }

    #[test]
    fn the_pace_follows_what_is_seen_and_small_prompts_say_nothing() {
        let pace = Pace::default();
        pace.learn(1, 10, Duration::from_secs(1));
        assert_eq!(pace.per_second(), None);
        for _ in 0..200 {
            pace.learn(1, 5000, Duration::from_millis(100));
        }
        assert!((49_000.0..51_000.0).contains(&pace.per_second().unwrap()));
        pace.reset(2);
        assert_eq!(pace.per_second(), None);
    }

    #[test]
    fn requests_of_an_older_trial_teach_nothing() {
        let pace = paced();
        pace.carry(2);
        pace.learn(1, 1_000_000, Duration::from_secs(1));
        assert_eq!(pace.per_second(), Some(10_000.0));
        pace.reset(3);
        pace.learn(2, 1_000_000, Duration::from_secs(1));
        assert_eq!(pace.per_second(), None);
        pace.learn(3, 5000, Duration::from_secs(1));
        assert_eq!(pace.per_second(), Some(5000.0));
    }
}

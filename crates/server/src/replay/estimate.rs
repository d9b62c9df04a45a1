//! How large and how fast simulated workers are: as given, or as a log tells. Simulates nothing.

use std::time::Duration;

use forebay_policy::BLOCK_BYTES;
use forebay_sim::engine::{BYTES_PER_TOKEN, EngineOptions};
use serde::Serialize;

use super::facts::{Fact, Facts, Samples};

/// Fewer tokens than this take no time that could be told from everything else that takes time.
const TELLING: u64 = 256;

/// Blocks of a prefix cache that keeps everything.
const EVERYTHING: usize = 1 << 40;

/// What was given on the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Given {
    /// Tokens in a second.
    pub(crate) prefill_rate: Option<f64>,
    /// Tokens in a second, for one request.
    pub(crate) decode_rate: Option<f64>,
    /// Tokens.
    pub(crate) cache_tokens: Option<u64>,
}

/// What simulated workers are like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Estimate {
    engine: EngineOptions,
    cache_tokens: Option<u64>,
    bytes_per_token: f64,
    told: Told,
}

/// The same for people, with where it comes from.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Told {
    pub(crate) prefill_tokens_per_second: f64,
    pub(crate) prefill_from: Source,
    pub(crate) decode_tokens_per_second: f64,
    pub(crate) decode_from: Source,
    pub(crate) bytes_per_token: f64,
    pub(crate) bytes_per_token_from: Source,
    /// `null`: as each worker told, see `cache_from`.
    pub(crate) cache_tokens: Option<u64>,
    pub(crate) cache_from: Source,
}

/// Where a number comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Source {
    Given,
    Log,
    /// The log does not tell.
    Default,
}

impl Estimate {
    pub(crate) fn new(facts: &Facts, given: &Given) -> Self {
        let Samples { text_bytes, text_tokens, ref prefill, ref decode, capacity_told, .. } = facts.samples;
        let or = EngineOptions::default();
        let (bytes_per_token, bytes_per_token_from) = match text_tokens {
            0 => (BYTES_PER_TOKEN as f64, Source::Default),
            tokens => (text_bytes as f64 / tokens as f64, Source::Log),
        };
        // Who waited for nobody tells what prefill takes: the quickest tenth.
        let (prefill, prefill_from) =
            pace(given.prefill_rate, per_token(prefill, TELLING, 0.1), or.prefill_per_token);
        let (decode, decode_from) = pace(given.decode_rate, per_token(decode, 1, 0.5), or.decode_per_token);
        let engine = EngineOptions {
            blocks: EVERYTHING,
            block_tokens: ((BLOCK_BYTES as f64 / bytes_per_token).round() as usize).max(1),
            prefill_per_token: prefill,
            decode_per_token: decode,
            ..or
        };
        let cache_from = match (given.cache_tokens, capacity_told) {
            (Some(_), _) => Source::Given,
            (None, true) => Source::Log,
            (None, false) => Source::Default,
        };
        let told = Told {
            prefill_tokens_per_second: rate(prefill),
            prefill_from,
            decode_tokens_per_second: rate(decode),
            decode_from,
            bytes_per_token,
            bytes_per_token_from,
            cache_tokens: given.cache_tokens,
            cache_from,
        };
        Self { engine, cache_tokens: given.cache_tokens, bytes_per_token, told }
    }

    /// A worker that told that its cache holds so many tokens; 0 if it did not.
    pub(crate) fn engine(&self, cache_tokens: u64) -> EngineOptions {
        let tokens = self.cache_tokens.unwrap_or(cache_tokens);
        let blocks = match usize::try_from(tokens).unwrap_or(usize::MAX) {
            0 => EVERYTHING,
            tokens => (tokens / self.engine.block_tokens).max(1),
        };
        EngineOptions { blocks, ..self.engine }
    }

    /// Tokens in a text of so many bytes.
    pub(crate) fn tokens(&self, bytes: u64) -> u64 {
        ((bytes as f64 / self.bytes_per_token).round() as u64).max(1)
    }

    /// Tokens of the answer to a request that ended like this: as told, or as many as its time was worth.
    pub(crate) fn output_tokens(&self, fact: Option<&Fact>) -> u64 {
        let Some(fact) = fact else { return 1 };
        let timed = || {
            let each = self.engine.decode_per_token.as_micros().max(1);
            fact.decode_us.map_or(1, |micros| 1 + (u128::from(micros) / each) as u64)
        };
        fact.completion_tokens.unwrap_or_else(timed)
    }

    pub(crate) fn told(&self) -> Told {
        self.told
    }
}

fn pace(given: Option<f64>, seen: Option<Duration>, or: Duration) -> (Duration, Source) {
    match (given, seen) {
        (Some(rate), _) => (Duration::from_secs_f64(1.0 / rate), Source::Given),
        (None, Some(each)) => (each, Source::Log),
        (None, None) => (or, Source::Default),
    }
}

fn rate(each: Duration) -> f64 {
    if each.is_zero() { f64::INFINITY } else { 1.0 / each.as_secs_f64() }
}

/// Time for one token at this share of the samples, the quickest first, of those with at least `least` tokens.
fn per_token(samples: &[(u64, u64)], least: u64, share: f64) -> Option<Duration> {
    let mut nanos: Vec<u64> = samples
        .iter()
        .filter(|(tokens, _)| *tokens >= least)
        .map(|(tokens, micros)| micros.saturating_mul(1000) / tokens)
        .collect();
    nanos.sort_unstable();
    let at = (nanos.len() as f64 * share) as usize;
    nanos.get(at).map(|&nanos| Duration::from_nanos(nanos.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_is_that_of_those_who_waited_for_nobody() {
        let mut samples: Vec<_> = (0..100).map(|i| (1000, 50_000 + i * 1000)).collect();
        samples.push((10, 1));
        assert_eq!(per_token(&samples, TELLING, 0.1), Some(Duration::from_micros(60)));
        assert_eq!(per_token(&[(10, 1)], TELLING, 0.1), None);
    }

    #[test]
    fn what_is_given_wins_and_what_nobody_tells_has_a_default() {
        let given = Given { prefill_rate: Some(1e4), decode_rate: None, cache_tokens: Some(320) };
        let estimate = Estimate::new(&Facts::default(), &given);
        let engine = estimate.engine(7);
        assert_eq!((engine.prefill_per_token, engine.blocks), (Duration::from_micros(100), 20));
        assert_eq!(estimate.told().decode_from, Source::Default);
        assert_eq!(Estimate::new(&Facts::default(), &Given::default()).engine(0).blocks, EVERYTHING);
    }
}

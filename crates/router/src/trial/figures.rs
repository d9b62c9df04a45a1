//! The counts of a trial in the form in which they are reported. Names and units here are part of the report's schema.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_policy::Reason;
use forebay_workers::Changes;
use serde::Serialize;

use crate::outcome::Outcome;
use crate::trial::pairs::PairFigures;
use crate::trial::tally::{ByModel, RELATIVE_ERROR, Spread, Tally, Times};

/// Counts by name; what never happened is left out.
type Counts = BTreeMap<&'static str, u64>;

/// What a trial came to.
#[derive(Debug, Clone, Serialize)]
pub struct Figures {
    /// Requests, however they ended. The router's own pages and orders to whole workers are not among them.
    pub requests: Requests,
    /// The same for each model.
    pub models: Vec<ModelFigures>,
    /// The worker that was asked last, for the requests that came to one. Reported with what else is known of each.
    #[serde(skip)]
    pub workers: Vec<WorkerFigures>,
    /// Those requests by why the worker was chosen that was to answer.
    pub decisions: Counts,
    /// Those that a prefill worker was chosen for, by why.
    pub prefill_decisions: Counts,
    /// Attempts after the first.
    pub retries: u64,
    /// How much there was to do at the same time.
    pub load: LoadFigures,
    /// Prompts against what their workers were thought to hold.
    pub prefix: PrefixFigures,
    /// What was predicted to be cached against what workers reported.
    pub cache: CacheFigures,
    /// Tokens as workers reported them.
    pub tokens: TokenFigures,
    /// Internal fields taken out of requests.
    pub stripped: Counts,
    /// Prefill/decode pairs.
    pub pairs: PairFigures,
    /// How long things took.
    pub times: TimeFigures,
    /// What had happened to the fleet up to the first request; `None` before it.
    #[serde(skip)]
    pub before: Option<Changes>,
}

/// Requests by how they ended.
#[derive(Debug, Clone, Serialize)]
pub struct Requests {
    /// Those that have ended.
    pub ended: u64,
    /// Those that are under way.
    pub under_way: u64,
    /// The former, by outcome.
    pub outcomes: Counts,
}

/// The requests for one model.
#[derive(Debug, Clone, Serialize)]
pub struct ModelFigures {
    /// Its name; empty where there was none.
    pub model: String,
    /// Requests that have ended, by outcome.
    pub outcomes: Counts,
}

/// The requests of one worker.
#[derive(Debug, Clone)]
pub struct WorkerFigures {
    /// Its name.
    pub worker: String,
    /// How many have ended.
    pub requests: u64,
    /// By why it was chosen.
    pub decisions: Counts,
}

/// How much there was to do at the same time.
#[derive(Debug, Clone, Serialize)]
pub struct LoadFigures {
    /// No more requests than this were under way at any time: the sum of the most that each data thread had, which may have
    /// been at different times.
    pub under_way_at_most: u64,
}

/// Prompts against what their workers were thought to hold.
#[derive(Debug, Clone, Serialize)]
pub struct PrefixFigures {
    /// Choices that looked at the prompt.
    pub choices: u64,
    /// Bytes of their prompts.
    pub prompt_bytes: u64,
    /// Those of them that the worker was thought to hold.
    pub matched_bytes: u64,
    /// The latter as a share of the former, from 0 to 1; `null` without a prompt.
    pub match_ratio: Option<f64>,
}

/// What was predicted to be cached against what workers reported.
#[derive(Debug, Clone, Serialize)]
pub struct CacheFigures {
    /// Answers that told.
    pub answers: u64,
    /// Tokens of their prompts.
    pub prompt_tokens: u64,
    /// Those of them that were predicted to be cached.
    pub predicted_cached_tokens: u64,
    /// Those that were.
    pub reported_cached_tokens: u64,
}

/// Tokens as workers reported them.
#[derive(Debug, Clone, Serialize)]
pub struct TokenFigures {
    /// Answers that told.
    pub answers: u64,
    /// Tokens of their prompts.
    pub prompt: u64,
    /// Tokens that they generated.
    pub completion: u64,
    /// Those of them that told how much of the prompt was cached.
    pub cached_answers: u64,
    /// Tokens of prompts that were cached, as the latter told.
    pub cached: u64,
}

/// How long things took.
#[derive(Debug, Clone, Serialize)]
pub struct TimeFigures {
    /// By how much of itself a quantile may be off.
    pub relative_error: f64,
    /// From the request's head to the first byte of the answer's body.
    pub first_byte_ms: Quantiles,
    /// From the request's head to the first token of a stream.
    pub first_token_ms: Quantiles,
    /// Between two reads of one stream: tokens that come together count as one.
    pub inter_token_ms: Quantiles,
    /// From the request's head to its end.
    pub end_to_end_ms: Quantiles,
}

/// Quantiles in milliseconds; `null` without a value.
#[derive(Debug, Clone, Serialize)]
pub struct Quantiles {
    /// How many values there are.
    pub count: u64,
    /// Their mean.
    pub mean: Option<f64>,
    /// Half of them are no longer.
    pub p50: Option<f64>,
    /// Nine tenths of them are no longer.
    pub p90: Option<f64>,
    /// 95 % of them are no longer.
    pub p95: Option<f64>,
    /// 99 % of them are no longer.
    pub p99: Option<f64>,
    /// The longest.
    pub max: Option<f64>,
}

impl Figures {
    pub(crate) fn of(tally: &Tally, under_way: u64) -> Self {
        let mut sums = [0; Outcome::ALL.len()];
        for (_, outcomes) in &tally.models {
            sums.iter_mut().zip(outcomes).for_each(|(sum, count)| *sum += count);
        }
        let mut reasons = [[0; Reason::ALL.len()]; 2];
        for worker in tally.workers.iter().flatten() {
            let sums = &mut reasons[usize::from(!worker.worker.host().role().answers())];
            sums.iter_mut().zip(worker.reasons).for_each(|(sum, count)| *sum += count);
        }
        Self {
            requests: Requests { ended: sums.iter().sum(), under_way, outcomes: outcomes(&sums) },
            models: ModelFigures::all_of(&tally.models),
            workers: workers(tally),
            decisions: decisions(&reasons[0]),
            prefill_decisions: decisions(&reasons[1]),
            retries: tally.retries,
            load: LoadFigures { under_way_at_most: tally.peak },
            prefix: PrefixFigures {
                choices: tally.prefix.choices,
                prompt_bytes: tally.prefix.bytes,
                matched_bytes: tally.prefix.matched,
                match_ratio: (tally.prefix.bytes > 0)
                    .then(|| tally.prefix.matched as f64 / tally.prefix.bytes as f64),
            },
            cache: CacheFigures {
                answers: tally.cache.answers,
                prompt_tokens: tally.cache.prompt,
                predicted_cached_tokens: tally.cache.predicted,
                reported_cached_tokens: tally.cache.reported,
            },
            tokens: TokenFigures {
                answers: tally.tokens.answers,
                prompt: tally.tokens.prompt,
                completion: tally.tokens.completion,
                cached_answers: tally.tokens.cached_answers,
                cached: tally.tokens.cached,
            },
            stripped: tally.stripped.iter().copied().collect(),
            pairs: PairFigures::of(&tally.pairs),
            times: TimeFigures::of(&tally.times),
            before: tally.before,
        }
    }

    /// How often requests ended so.
    pub fn count(&self, outcome: Outcome) -> u64 {
        self.requests.outcomes.get(outcome.as_str()).copied().unwrap_or(0)
    }
}

impl ModelFigures {
    pub(crate) fn all_of(models: &ByModel) -> Vec<Self> {
        let of = |(model, counts): &(Arc<str>, _)| Self {
            model: (**model).to_owned(),
            outcomes: outcomes(counts),
        };
        let mut models: Vec<_> = models.iter().map(of).collect();
        models.sort_by(|a, b| a.model.cmp(&b.model));
        models
    }
}

fn workers(tally: &Tally) -> Vec<WorkerFigures> {
    let workers = tally.workers.iter().flatten();
    workers
        .map(|tally| WorkerFigures {
            worker: tally.worker.name().to_owned(),
            requests: tally.requests,
            decisions: decisions(&tally.reasons),
        })
        .collect()
}

fn outcomes(counts: &[u64; Outcome::ALL.len()]) -> Counts {
    Outcome::ALL.map(Outcome::as_str).into_iter().zip(*counts).filter(|(_, count)| *count > 0).collect()
}

fn decisions(counts: &[u64; Reason::ALL.len()]) -> Counts {
    Reason::ALL.map(Reason::as_str).into_iter().zip(*counts).filter(|(_, count)| *count > 0).collect()
}

impl TimeFigures {
    fn of(times: &Times) -> Self {
        Self {
            relative_error: RELATIVE_ERROR,
            first_byte_ms: Quantiles::of(&times.first_byte),
            first_token_ms: Quantiles::of(&times.first_token),
            inter_token_ms: Quantiles::of(&times.gap),
            end_to_end_ms: Quantiles::of(&times.whole),
        }
    }
}

impl Quantiles {
    fn of(spread: &Spread) -> Self {
        let values = spread.0.as_ref().filter(|values| !values.is_empty());
        let at = |quantile| values.map(|values| values.value_at_quantile(quantile) as f64 / 1000.0);
        Self {
            count: values.map_or(0, hdrhistogram::Histogram::len),
            mean: values.map(|values| values.mean() / 1000.0),
            p50: at(0.5),
            p90: at(0.9),
            p95: at(0.95),
            p99: at(0.99),
            max: values.map(|values| values.max() as f64 / 1000.0),
        }
    }
}

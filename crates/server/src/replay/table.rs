//! What a replay prints, for people and for programs. The same replay prints the same bytes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use forebay_policy::PolicyKind;
use serde::Serialize;

use super::check::Checked;
use super::estimate::{Source, Told};
use super::scene::Names;
use crate::decisions::reader::LogReader;

/// Number of this form of the JSON.
const SCHEMA: u32 = 1;

/// Requests under one policy, summed up.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Requests given to each slot that could have got some.
    slots: BTreeMap<u32, u64>,
    prompt_tokens: u64,
    cached_tokens: u64,
    first_tokens_us: Vec<u64>,
}

impl Tally {
    /// A slot of these got a request.
    pub(crate) fn given(&mut self, slot: u32, among: impl Iterator<Item = u32>) {
        among.for_each(|slot| _ = self.slots.entry(slot).or_default());
        *self.slots.entry(slot).or_default() += 1;
    }

    /// A prompt of so many tokens, of which so many were cached, if both are known.
    pub(crate) fn prompt(&mut self, tokens: Option<u64>, cached: Option<u64>) {
        if let (Some(tokens), Some(cached)) = (tokens, cached) {
            self.prompt_tokens += tokens;
            self.cached_tokens += cached;
        }
    }

    /// The first token came after so many µs.
    pub(crate) fn first_token_us(&mut self, micros: u64) {
        self.first_tokens_us.push(micros);
    }
}

/// What is printed.
#[derive(Serialize)]
pub struct Report {
    pub(crate) log: Log,
    pub(crate) check: Checked,
    pub(crate) estimate: Told,
    pub(crate) columns: Vec<Column>,
}

/// The log itself.
#[derive(Serialize)]
pub(crate) struct Log {
    file: String,
    forebay: String,
    seed: u64,
    /// Whether all that choices depended on is there.
    exact: bool,
    /// Numbers that no line has.
    missing: u64,
    /// Whether the last line is cut.
    cut: bool,
    /// Whether it has come to its end.
    ended: bool,
}

/// One policy's requests.
#[derive(Serialize)]
pub(crate) struct Column {
    policy: Option<&'static str>,
    /// `false`: as recorded.
    simulated: bool,
    requests: u64,
    /// Share of prompt tokens that were cached, 0 to 1; `null` if nobody told.
    hit_rate: Option<f64>,
    /// Requests whose time to the first token is known.
    timed: u64,
    ttft_p50_ms: Option<f64>,
    ttft_p99_ms: Option<f64>,
    /// Requests of the busiest worker against the mean of all.
    spread: Option<f64>,
    workers: BTreeMap<String, u64>,
}

impl Log {
    pub(crate) fn new(file: &Path, read: &LogReader) -> Self {
        Self {
            file: file.display().to_string(),
            forebay: read.header.forebay.clone(),
            seed: read.header.seed,
            exact: read.fate.is_exact(),
            missing: read.fate.missing,
            cut: read.fate.cut,
            ended: read.fate.end.is_some(),
        }
    }
}

impl Column {
    pub(crate) fn recorded(tally: &Tally, kind: Option<PolicyKind>, names: &Names) -> Self {
        Self::new(tally, kind, false, names)
    }

    pub(crate) fn simulated(tally: &Tally, kind: PolicyKind, names: &Names) -> Self {
        Self::new(tally, Some(kind), true, names)
    }

    fn new(tally: &Tally, kind: Option<PolicyKind>, simulated: bool, names: &Names) -> Self {
        let requests: u64 = tally.slots.values().sum();
        let mut micros = tally.first_tokens_us.clone();
        micros.sort_unstable();
        let busiest = tally.slots.values().max().copied().unwrap_or(0);
        let name = |slot: &u32| match names.of(*slot).0 {
            "" => format!("slot {slot}"),
            name => name.to_owned(),
        };
        Self {
            policy: kind.map(PolicyKind::as_str),
            simulated,
            requests,
            hit_rate: (tally.prompt_tokens > 0)
                .then(|| tally.cached_tokens as f64 / tally.prompt_tokens as f64),
            timed: micros.len() as u64,
            ttft_p50_ms: quantile_ms(&micros, 50),
            ttft_p99_ms: quantile_ms(&micros, 99),
            spread: (requests > 0).then(|| busiest as f64 * tally.slots.len() as f64 / requests as f64),
            workers: tally.slots.iter().map(|(slot, &count)| (name(slot), count)).collect(),
        }
    }

    fn label(&self) -> String {
        let policy = self.policy.unwrap_or("unknown");
        if self.simulated { format!("{policy}, simulated") } else { format!("{policy}, recorded") }
    }
}

/// The nearest rank, of sorted µs.
fn quantile_ms(sorted: &[u64], percent: usize) -> Option<f64> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).map(|&micros| micros as f64 / 1000.0)
}

impl Report {
    /// One JSON object on one line.
    pub fn json(&self) -> String {
        #[derive(Serialize)]
        struct Versioned<'a> {
            schema: u32,
            #[serde(flatten)]
            report: &'a Report,
        }
        let mut text = serde_json::to_string(&Versioned { schema: SCHEMA, report: self }).unwrap_or_default();
        text.push('\n');
        text
    }

    /// A few lines and a table.
    pub fn text(&self) -> String {
        let Checked { recorded, reproduced, unknown, first_difference } = &self.check;
        let mut text = self.log.text();
        let _infallible = write!(text, "choices: {reproduced} of {recorded} reproduced");
        if *unknown > 0 {
            let _infallible = write!(text, ", {unknown} without their policy");
        }
        text.push('\n');
        if let Some(difference) = first_difference {
            let show = |chosen| serde_json::to_string(chosen).unwrap_or_default();
            let _infallible = writeln!(
                text,
                "first difference: seq {}, request {}\n  recorded {}\n  replayed {}",
                difference.seq,
                difference.request,
                show(&difference.recorded),
                show(&difference.replayed),
            );
        }
        let _infallible = writeln!(text, "{}\n", self.estimate.text());
        let (by, p50, p99) = ("policy", "TTFT p50 ms", "TTFT p99 ms");
        let _infallible = writeln!(
            text,
            "{by:<28} {:>9} {:>9} {p50:>12} {p99:>12} {:>7}",
            "requests", "hit rate", "spread"
        );
        for column in &self.columns {
            let number =
                |value: Option<f64>, digits| value.map_or("-".to_owned(), |v| format!("{v:.digits$}"));
            let _infallible = writeln!(
                text,
                "{:<28} {:>9} {:>9} {:>12} {:>12} {:>7}",
                column.label(),
                column.requests,
                column.hit_rate.map_or("-".to_owned(), |rate| format!("{:.1} %", rate * 100.0)),
                number(column.ttft_p50_ms, 1),
                number(column.ttft_p99_ms, 1),
                number(column.spread, 2),
            );
        }
        text
    }

    /// Why this is no success: the log is all there, and yet choices came out otherwise.
    pub fn failure(&self) -> Option<String> {
        let Checked { recorded, reproduced, .. } = &self.check;
        (self.log.exact && reproduced < recorded)
            .then(|| format!("{} of {recorded} choices were not reproduced", recorded - reproduced))
    }
}

impl Log {
    fn text(&self) -> String {
        let Self { file, forebay, seed, exact, missing, cut, ended } = self;
        let mut text = format!("{file}: forebay {forebay}, seed {seed}, exact:{exact}");
        if *missing > 0 {
            let _infallible = write!(text, ", {missing} lines were dropped");
        }
        if *cut {
            text.push_str(", the last line is cut and not counted");
        } else if !ended {
            text.push_str(", it has no end");
        }
        text.push('\n');
        text
    }
}

impl Told {
    fn text(&self) -> String {
        let from = |source| match source {
            Source::Given => "given",
            Source::Log => "from the log",
            Source::Default => "default",
        };
        let cache = match (self.cache_tokens, self.cache_from) {
            (Some(tokens), _) => format!("{tokens} tokens (given)"),
            (None, Source::Log) => "as the workers told".to_owned(),
            (None, _) => "keeps everything".to_owned(),
        };
        format!(
            "simulated workers: prefill {:.0} tokens/s ({}), decode {:.0} tokens/s ({}), {:.2} bytes per token ({}), \
             cache {cache}",
            self.prefill_tokens_per_second,
            from(self.prefill_from),
            self.decode_tokens_per_second,
            from(self.decode_from),
            self.bytes_per_token,
            from(self.bytes_per_token_from),
        )
    }
}

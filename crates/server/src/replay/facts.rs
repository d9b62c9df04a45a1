//! The requests of a log: each from its first choice to its end, whatever was tried between. Estimates nothing.

use std::collections::HashMap;

use super::table::Tally;
use crate::decisions::line::{ChoiceLine, EndedLine, Line};
use crate::decisions::reader::Entry;

/// All requests that a worker was chosen for.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    /// First choice of each request that has not ended, by its id.
    open: HashMap<String, u64>,
    /// First choice of the request of each choice.
    first: HashMap<u64, u64>,
    /// What began with each first choice and has not ended.
    begun: HashMap<u64, Begun>,
    /// What ended, by first choice.
    ended: HashMap<u64, Fact>,
    tally: Tally,
    /// Of those that ended, in order, for estimates.
    pub(crate) samples: Samples,
}

/// What is known of a request at its first choice.
#[derive(Clone, Copy, Debug)]
struct Begun {
    key_bytes: u64,
    is_text: bool,
    streamed: bool,
    uncached: Option<u64>,
}

/// What is known of a request at its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fact {
    /// Tokens of the prompt, if the worker told.
    pub(crate) prompt_tokens: Option<u64>,
    /// Tokens of the answer, if it told.
    pub(crate) completion_tokens: Option<u64>,
    /// From the first token to the end, if it was a stream.
    pub(crate) decode_us: Option<u64>,
    /// From the beginning to the end.
    pub(crate) took_us: u64,
}

/// What can be learnt from a log of how fast workers were.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    /// Bytes and tokens of prompts that were text.
    pub(crate) text_bytes: u64,
    pub(crate) text_tokens: u64,
    /// Uncached tokens and µs to the first token of streams.
    pub(crate) prefill: Vec<(u64, u64)>,
    /// Tokens after the first and the µs that they took.
    pub(crate) decode: Vec<(u64, u64)>,
    /// Whether a worker told how much its prefix cache holds.
    pub(crate) capacity_told: bool,
    /// Whether any answer was a stream.
    pub(crate) streams: bool,
}

impl Facts {
    /// Takes the next line.
    pub(crate) fn take(&mut self, entry: &Entry) {
        match &entry.line {
            Line::Choice(line) => self.chosen(line),
            Line::Ended(line) => self.ended(line),
            Line::Capacity { tokens, .. } => self.samples.capacity_told |= *tokens > 0,
            _ => {}
        }
    }

    fn chosen(&mut self, line: &ChoiceLine) {
        let Some(chosen) = &line.chosen else { return };
        if line.attempt > 0 {
            if let Some(&first) = self.open.get(&line.request) {
                self.first.insert(line.seq, first);
            }
            return;
        }
        self.open.insert(line.request.clone(), line.seq);
        self.first.insert(line.seq, line.seq);
        self.samples.streams |= line.streamed;
        self.tally.given(chosen.slot, line.candidates.iter().map(|candidate| candidate.slot()));
        let begun = Begun {
            key_bytes: line.key.as_ref().map_or(0, |key| key.bytes),
            is_text: line.counted.is_none(),
            streamed: line.streamed,
            uncached: (chosen.prompt_tokens > 0).then_some(u64::from(chosen.uncached_tokens)),
        };
        self.begun.insert(line.seq, begun);
    }

    fn ended(&mut self, line: &EndedLine) {
        let Some(first) = self.first.remove(&line.choice) else { return };
        if self.open.get(&line.request) == Some(&first) {
            self.open.remove(&line.request);
        }
        let Some(begun) = self.begun.remove(&first) else { return };
        let decode_us =
            line.first_token_us.filter(|_| begun.streamed).map(|at| line.took_us.saturating_sub(at));
        let fact = Fact {
            prompt_tokens: line.prompt_tokens,
            completion_tokens: line.completion_tokens,
            decode_us,
            took_us: line.took_us,
        };
        if line.outcome == "completed" && begun.key_bytes > 0 {
            self.sample(&begun, line, &fact);
        }
        self.ended.insert(first, fact);
    }

    fn sample(&mut self, begun: &Begun, line: &EndedLine, fact: &Fact) {
        if let Some(tokens) = line.prompt_tokens.filter(|_| begun.is_text) {
            self.samples.text_bytes += begun.key_bytes;
            self.samples.text_tokens += tokens;
        }
        self.tally.prompt(line.prompt_tokens, line.cached_tokens);
        let Some(first_token_us) = line.first_token_us.filter(|_| begun.streamed) else { return };
        self.tally.first_token_us(first_token_us);
        let told = line.prompt_tokens.zip(line.cached_tokens).map(|(all, cached)| all.saturating_sub(cached));
        if let Some(uncached) = told.or(begun.uncached) {
            self.samples.prefill.push((uncached, first_token_us));
        }
        if let (Some(tokens), Some(micros)) = (line.completion_tokens, fact.decode_us) {
            self.samples.decode.push((tokens.saturating_sub(1), micros));
        }
    }

    /// How the request of a first choice ended.
    pub(crate) fn of(&self, first_choice: u64) -> Option<&Fact> {
        self.ended.get(&first_choice)
    }

    /// The requests as they were recorded.
    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }
}

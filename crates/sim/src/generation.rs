//! What a worker generated for one request, independent of the API it came through.

use crate::answer::{Answer, Record, quoted};
use crate::engine::Admission;
use crate::prompt::{Ask, Prompt, words};
use crate::sse;

/// The tokens of one request and what is reported about them.
#[derive(Clone, Debug)]
pub(crate) struct Generation {
    pub(crate) ask: Ask,
    /// What follows the API's prefix in the answer's id.
    pub(crate) id: String,
    /// Unix time in seconds.
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) fingerprint: String,
    /// Words of each choice, prompts first, then `n`.
    pub(crate) outputs: Vec<Vec<String>>,
    pub(crate) usage: Usage,
    /// What the engine said about each prompt.
    pub(crate) admissions: Vec<Admission>,
}

/// Token counts of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt: u64,
    pub(crate) completion: u64,
    /// `None` where the worker does not report it.
    pub(crate) cached: Option<u64>,
}

impl Usage {
    /// As a whole answer carries it.
    pub(crate) fn whole(&self) -> String {
        let details = self.cached.map_or("null".to_owned(), |cached| {
            format!(r#"{{"cached_tokens":{cached},"created_cache_tokens":null,"multimodal_tokens":null}}"#)
        });
        format!(r#"{{{},"prompt_tokens_details":{details},"completion_tokens_details":null}}"#, self.counts())
    }

    /// As the last record of a stream carries it: without nulls.
    pub(crate) fn streamed(&self) -> String {
        match self.cached {
            Some(cached) => {
                format!(r#"{{{},"prompt_tokens_details":{{"cached_tokens":{cached}}}}}"#, self.counts())
            }
            None => format!("{{{}}}", self.counts()),
        }
    }

    /// As each record of a stream carries it after so many output tokens.
    pub(crate) fn so_far(&self, completion: u64) -> String {
        format!("{{{}}}", Self { completion, ..*self }.counts())
    }

    fn counts(&self) -> String {
        let Self { prompt, completion, .. } = self;
        format!(
            r#""prompt_tokens":{prompt},"total_tokens":{},"completion_tokens":{completion}"#,
            prompt + completion
        )
    }
}

/// One token of a stream.
pub(crate) struct Token<'a> {
    /// Index of its choice.
    pub(crate) choice: usize,
    pub(crate) word: &'a str,
    pub(crate) last: bool,
    /// Tokens of this choice up to here.
    pub(crate) count: u64,
    /// Tokens of all choices up to here.
    pub(crate) total: u64,
}

impl Generation {
    /// The words that a request is answered with, behind so many that were told before.
    pub(crate) fn outputs(ask: &Ask, told: u64) -> Vec<Vec<String>> {
        let choices =
            ask.prompts.iter().flat_map(|prompt| (0..ask.choices).map(move |choice| (prompt, choice)));
        let behind = |(prompt, choice): (&Prompt, u64)| {
            words(prompt, choice, told + ask.max_tokens).split_off(told as usize)
        };
        choices.map(behind).collect()
    }

    /// The tokens in the order in which they are sent: choices advance together.
    pub(crate) fn tokens(&self) -> impl Iterator<Item = Token<'_>> {
        let choices = self.outputs.len() as u64;
        let longest = self.ask.max_tokens;
        (0..longest).flat_map(move |at| {
            self.outputs.iter().enumerate().map(move |(choice, words)| Token {
                choice,
                word: &words[at as usize],
                last: at + 1 == longest,
                count: at + 1,
                total: at * choices + choice as u64 + 1,
            })
        })
    }

    /// Text of one choice.
    pub(crate) fn text(&self, choice: usize) -> String {
        self.outputs.get(choice).map(|words| words.concat()).unwrap_or_default()
    }

    /// `"model":…` as JSON string.
    pub(crate) fn model(&self) -> String {
        quoted(&self.model)
    }

    /// `,"usage":…` for a record in the middle of a stream, or nothing.
    pub(crate) fn usage_so_far(&self, total: u64) -> String {
        match self.ask.continuous_usage {
            true => format!(r#","usage":{}"#, self.usage.so_far(total)),
            false => String::new(),
        }
    }

    /// `,"system_fingerprint":…` for a record with a token, or nothing: without a usage record it is on the last one of the
    /// choice.
    pub(crate) fn fingerprint_with(&self, token: &Token<'_>) -> String {
        match token.last && !self.ask.include_usage {
            true => format!(r#","system_fingerprint":{}"#, quoted(&self.fingerprint)),
            false => String::new(),
        }
    }

    /// The end of a stream whose records begin like this.
    pub(crate) fn ending(&self, start: &str) -> impl Iterator<Item = Record> {
        let token = self.ask.max_tokens;
        let usage = self.ask.include_usage.then(|| {
            let (usage, fingerprint) = (self.usage.streamed(), quoted(&self.fingerprint));
            sse::data(&format!(r#"{start}],"usage":{usage},"system_fingerprint":{fingerprint}}}"#))
        });
        usage.into_iter().chain([sse::done()]).map(move |bytes| Record { token, bytes })
    }

    pub(crate) fn stream(&self, records: Vec<Record>) -> Answer {
        Answer { admissions: self.admissions.clone(), ..Answer::stream(records) }
    }

    pub(crate) fn whole(&self, body: String) -> Answer {
        Answer { admissions: self.admissions.clone(), ..Answer::json(200, body) }
    }
}

//! The loads that are put on a router: what a request looks like, how the worker answers, how many clients. Runs none.

use std::fmt::Write;
use std::time::Duration;

use clap::ValueEnum;
use forebay_sim::WorkerOptions;

/// Prompts that take turns.
const PROMPTS: u64 = 64;

/// Tokens of an answer that is not streamed.
const WORDS: u32 = 16;

/// Token ids are below this.
const VOCABULARY: u64 = 128_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Case {
    #[value(name = "2k")]
    Prompt2KiB,
    #[value(name = "16k")]
    Prompt16KiB,
    #[value(name = "1m")]
    Prompt1MiB,
    #[value(name = "burst")]
    Burst,
    #[value(name = "paced")]
    Paced,
    #[value(name = "ids4k")]
    Ids4k,
    #[value(name = "ids100k")]
    Ids100k,
    #[value(name = "one")]
    OneClient,
    /// 1,000 streams that stay silent after their first token
    #[value(name = "idle")]
    IdleStreams,
    /// From the first answer of a worker to the `ready` line
    #[value(name = "startup")]
    Startup,
    /// One runtime thread against two
    #[value(name = "threads")]
    Threads,
    /// Prefill/decode pairs against single requests, and against those of vllm-router
    #[value(name = "pairs")]
    Disaggregated,
}

#[derive(Clone, Copy)]
pub(crate) enum Prompt {
    /// A chat with a text of so many bytes.
    Text(usize),
    /// A completion of one.
    Completion(usize),
    /// So many token ids.
    Ids(usize),
}

/// A closed loop.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) title: &'static str,
    pub(crate) prompt: Prompt,
    pub(crate) clients: usize,
    /// Tokens of a streamed answer.
    pub(crate) stream: Option<u32>,
    /// Time between them.
    pub(crate) pace: Option<Duration>,
}

impl Case {
    /// The closed loop, if the case is one.
    pub(crate) fn shape(self) -> Option<Shape> {
        let whole = |title, prompt, clients| Some(Shape { title, prompt, clients, stream: None, pace: None });
        let stream = |title, tokens, clients, pace| {
            Some(Shape { title, prompt: Prompt::Text(2 << 10), clients, stream: Some(tokens), pace })
        };
        match self {
            Self::Prompt2KiB => whole("2 KiB prompt, 32 clients", Prompt::Text(2 << 10), 32),
            Self::Prompt16KiB => whole("16 KiB prompt, 32 clients", Prompt::Text(16 << 10), 32),
            Self::Prompt1MiB => whole("1 MiB prompt, 8 clients", Prompt::Text(1 << 20), 8),
            Self::Ids4k => whole("4,000 token ids, 32 clients", Prompt::Ids(4_000), 32),
            Self::Ids100k => whole("100,000 token ids, 8 clients", Prompt::Ids(100_000), 8),
            Self::OneClient => whole("2 KiB prompt, one client", Prompt::Text(2 << 10), 1),
            Self::Burst => stream("stream of 128 tokens at once, 64 clients", 128, 64, None),
            Self::Paced => stream(
                "stream of 100 tokens, one per 10 ms, 100 clients",
                100,
                100,
                Some(Duration::from_millis(10)),
            ),
            Self::IdleStreams | Self::Startup | Self::Threads | Self::Disaggregated => None,
        }
    }
}

impl Shape {
    /// How the workers answer.
    pub(crate) fn worker(&self) -> WorkerOptions {
        WorkerOptions { pace: self.pace, ..WorkerOptions::instant(self.stream.unwrap_or(WORDS)) }
    }

    /// Heads and bodies, ready to be sent.
    pub(crate) fn requests(&self) -> Vec<Vec<u8>> {
        (0..PROMPTS).map(|seed| request(self.prompt, self.stream, seed)).collect()
    }
}

/// Head and body. `stream` and `model` come before the prompt, so that a simulated worker need not search for them.
pub(crate) fn request(prompt: Prompt, stream: Option<u32>, seed: u64) -> Vec<u8> {
    let (streamed, tokens) = (stream.is_some(), stream.unwrap_or(WORDS));
    let (path, body) = match prompt {
        Prompt::Text(bytes) => (
            "/v1/chat/completions",
            format!(
                r#"{{"model":"tiny","stream":{streamed},"max_tokens":{tokens},"messages":[{{"role":"user","content":"{}"}}]}}"#,
                text(bytes, seed)
            ),
        ),
        Prompt::Completion(bytes) => (
            "/v1/completions",
            format!(
                r#"{{"model":"tiny","stream":{streamed},"max_tokens":{tokens},"prompt":"{}"}}"#,
                text(bytes, seed)
            ),
        ),
        Prompt::Ids(count) => (
            "/inference/v1/generate",
            format!(
                r#"{{"model":"tiny","stream":{streamed},"sampling_params":{{"max_tokens":{tokens}}},"token_ids":[{}]}}"#,
                ids(count, seed)
            ),
        ),
    };
    format!(
        "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nuser-agent: yardstick\r\naccept: */*\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Words of small letters, different from the first one on for every seed.
fn text(bytes: usize, seed: u64) -> String {
    let mut draws = Draws::new(seed);
    let mut text = String::with_capacity(bytes + 16);
    while text.len() < bytes {
        let draw = draws.next();
        let letters = 2 + draw % 8;
        text.extend((0..letters).map(|nth| char::from(b'a' + (draw >> (8 + nth * 5)) as u8 % 26)));
        text.push(' ');
    }
    text.truncate(bytes);
    text
}

fn ids(count: usize, seed: u64) -> String {
    let mut draws = Draws::new(seed);
    let mut ids = String::with_capacity(count * 7);
    for nth in 0..count {
        let comma = if nth == 0 { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = write!(ids, "{comma}{}", draws.next() % VOCABULARY);
    }
    ids
}

/// Numbers that look random and are the same in every run (xorshift64).
pub(crate) struct Draws(u64);

impl Draws {
    pub(crate) fn new(seed: u64) -> Self {
        let mut draws = Self((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        draws.next();
        draws
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_has_the_size_of_its_case_and_differs_from_the_others() {
        let requests = Case::Prompt2KiB.shape().unwrap().requests();
        assert_eq!(requests.len(), 64);
        for request in &requests {
            assert!((2048..2500).contains(&request.len()), "{}", request.len());
        }
        assert_ne!(requests[0], requests[1]);
        assert_eq!(requests, Case::Prompt2KiB.shape().unwrap().requests());
    }

    #[test]
    fn the_length_in_the_head_is_that_of_the_body() {
        let request = request(Prompt::Ids(3), None, 7);
        let text = String::from_utf8(request).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("content-length: {}", body.len())), "{head}");
        assert_eq!(body.matches(',').count(), 5);
    }
}

//! What a worker reports of a prompt at the end of its answer, against what was predicted. It keeps the end of the answer
//! only, and reads no more of it than two numbers.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use forebay_policy::{Choice, Policy};
use forebay_workers::{Checked, Worker};
use memchr::memmem::Finder;

/// Bytes of an answer's end that are looked at. The counts are the last or the last but one thing in it.
const LOOKED_AT: usize = 1024;

/// Members of `usage` by the names of each API.
static PROMPT: LazyLock<[Finder<'static>; 2]> =
    LazyLock::new(|| [Finder::new(b"\"prompt_tokens\":"), Finder::new(b"\"input_tokens\":")]);
static CACHED: LazyLock<[Finder<'static>; 2]> =
    LazyLock::new(|| [Finder::new(b"\"cached_tokens\":"), Finder::new(b"\"cache_read_input_tokens\":")]);

/// Waits for the end of one answer.
pub(crate) struct Report {
    worker: Arc<Worker>,
    policy: Arc<Policy>,
    choice: Choice,
    /// Whether the prompt was text: ids count themselves.
    is_text: bool,
    /// The last reads, latest last: shared with the response, so that keeping them costs no copy.
    last: [Bytes; 3],
}

impl Report {
    /// For an answer to a request with a prompt. `None` if its policy has no use for it.
    pub(crate) fn new(
        worker: &Arc<Worker>,
        policy: &Arc<Policy>,
        choice: Choice,
        is_text: bool,
    ) -> Option<Self> {
        (choice.key_len > 0).then(|| Self {
            worker: Arc::clone(worker),
            policy: Arc::clone(policy),
            choice,
            is_text,
            last: Default::default(),
        })
    }

    /// Bytes of the body came.
    pub(crate) fn take_in(&mut self, chunk: &Bytes) {
        self.last.rotate_left(1);
        self.last[2] = chunk.clone();
    }

    /// The body is whole.
    pub(crate) fn end(self) {
        let [.., latest] = &self.last;
        if latest.len() >= LOOKED_AT || self.last[1].is_empty() {
            self.read(latest);
        } else {
            self.read(&self.last.concat());
        }
    }

    fn read(&self, text: &[u8]) {
        let end = &text[text.len().saturating_sub(LOOKED_AT)..];
        let Some(prompt) = number(end, &*PROMPT).filter(|&tokens| tokens > 0) else { return };
        if self.is_text {
            self.policy.learn_tokens(u64::from(self.choice.key_len), prompt);
        }
        if let Some(reported) = number(end, &*CACHED) {
            let uncached = u128::from(prompt) * u128::from(self.choice.uncached_tokens);
            let uncached = (uncached / u128::from(self.choice.prompt_tokens.max(1))) as u64;
            let predicted = prompt.saturating_sub(uncached);
            self.worker.predictions().checked(Checked { prompt, predicted, reported });
        }
    }
}

/// The number behind the last occurrence of the first of these names that is there.
fn number(text: &[u8], names: &[Finder<'_>]) -> Option<u64> {
    let behind = |name: &Finder<'_>| name.find_iter(text).last().map(|at| at + name.needle().len());
    let value = text[names.iter().find_map(behind)?..].trim_ascii_start();
    let digits = value.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&value[..digits]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_policy::{Ask, PolicySettings, PrefixKey};
    use forebay_workers::{BreakerSettings, HealthSettings, Models, Tried, registry};

    /// What is counted of an answer that comes in pieces of `size` bytes.
    fn told(answer: &str, size: usize) -> Checked {
        let (reader, writer) =
            registry(PolicySettings::default(), 1, HealthSettings::default(), BreakerSettings::default());
        let worker = writer.add("http://w:1".parse().unwrap(), None);
        writer.learnt(&worker, Models::Any, None);
        writer.probed(&worker, true);
        let mut key = PrefixKey::new();
        let mut builder = key.builder(0);
        builder.push(&[b'a'; 4000]);
        builder.finish();
        let world = reader.world();
        let pool = world.pool(None).unwrap();
        let ask = Ask { prefix: Some(&key), ..Ask::default() };
        drop(pool.select(&ask, &Tried::default()));
        let choice = pool.select(&ask, &Tried::default()).unwrap().choice;
        let mut report = Report::new(&worker, pool.policy(), choice, true).unwrap();
        answer.as_bytes().chunks(size).for_each(|chunk| report.take_in(&Bytes::copy_from_slice(chunk)));
        report.end();
        worker.predictions().checks()
    }

    #[test]
    fn counts_are_found_at_the_end_however_the_answer_is_cut() {
        let answer = format!(
            r#"{{"choices":["{}\"prompt_tokens\":7"],"usage":{{"prompt_tokens":500,"total_tokens":516,"completion_tokens":16,"prompt_tokens_details":{{"cached_tokens":480}}}},"kv_transfer_params":null}}"#,
            "word ".repeat(1000)
        );
        for size in [100, 150, 1000, 1023, 1024, 1025, 5000, 100_000] {
            let told = told(&answer, size);
            assert_eq!((told.prompt, told.reported), (500, 480), "{size}");
            assert!((499..=500).contains(&told.predicted), "{told:?}");
        }
    }

    #[test]
    fn an_answer_without_counts_says_nothing() {
        for answer in ["", "{}", r#"{"usage":null}"#, r#"{"usage":{"prompt_tokens":5}}"#] {
            assert_eq!(told(answer, 10), Checked { prompt: 0, predicted: 0, reported: 0 }, "{answer}");
        }
    }
}

//! What a worker reports of a prompt at the end of its answer, against what was predicted. It keeps the end of the answer
//! only, and reads no more of it than two numbers.

use std::sync::Arc;

use forebay_policy::{Choice, Policy};
use forebay_workers::{Checked, Worker};
use memchr::memmem;

/// Bytes of an answer's end that are kept. The counts are the last or the last but one thing in it.
const KEPT: usize = 1024;

/// Waits for the end of one answer.
pub(crate) struct Report {
    worker: Arc<Worker>,
    policy: Arc<Policy>,
    choice: Choice,
    /// Whether the prompt was text: ids count themselves.
    is_text: bool,
    /// The end of what came, up to twice [`KEPT`].
    tail: Vec<u8>,
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
            tail: Vec::new(),
        })
    }

    /// Bytes of the body came. They are copied to a buffer that is made once for each answer.
    pub(crate) fn take_in(&mut self, chunk: &[u8]) {
        let chunk = &chunk[chunk.len().saturating_sub(KEPT)..];
        if self.tail.capacity() == 0 {
            self.tail.reserve_exact(2 * KEPT);
        }
        if self.tail.len() + chunk.len() > 2 * KEPT {
            let surplus = (self.tail.len() + chunk.len()).saturating_sub(KEPT).min(self.tail.len());
            self.tail.drain(..surplus);
        }
        self.tail.extend_from_slice(chunk);
    }

    /// The body is whole.
    pub(crate) fn end(self) {
        let prompt = number_behind(&self.tail, b"\"prompt_tokens\":")
            .or_else(|| number_behind(&self.tail, b"\"input_tokens\":"));
        let Some(prompt) = prompt.filter(|&tokens| tokens > 0) else { return };
        if self.is_text {
            self.policy.learn_tokens(u64::from(self.choice.key_len), prompt);
        }
        let reported = number_behind(&self.tail, b"\"cached_tokens\":")
            .or_else(|| number_behind(&self.tail, b"\"cache_read_input_tokens\":"));
        if let Some(reported) = reported {
            let uncached = u128::from(prompt) * u128::from(self.choice.uncached_tokens);
            let uncached = (uncached / u128::from(self.choice.prompt_tokens.max(1))) as u64;
            let predicted = prompt.saturating_sub(uncached);
            self.worker.predictions().checked(Checked { prompt, predicted, reported });
        }
    }
}

/// The number behind the last `name`.
fn number_behind(text: &[u8], name: &[u8]) -> Option<u64> {
    let value = text[memmem::rfind(text, name)? + name.len()..].trim_ascii_start();
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
        answer.as_bytes().chunks(size).for_each(|chunk| report.take_in(chunk));
        report.end();
        worker.predictions().checks()
    }

    #[test]
    fn counts_are_found_at_the_end_however_the_answer_is_cut() {
        let answer = format!(
            r#"{{"choices":["{}\"prompt_tokens\":7"],"usage":{{"prompt_tokens":500,"total_tokens":516,"completion_tokens":16,"prompt_tokens_details":{{"cached_tokens":480}}}},"kv_transfer_params":null}}"#,
            "word ".repeat(1000)
        );
        for size in [1, 7, 100, 1000, 1023, 1024, 1025, 5000, 100_000] {
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

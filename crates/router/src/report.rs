//! What a worker reports of tokens in its answer, and that against what was predicted. It keeps the end of the answer only,
//! and of a stream nothing.

use std::sync::Arc;

use bytes::Bytes;
use forebay_openai::{Usage, UsageScan};
use forebay_policy::{Choice, Policy};
use forebay_workers::{Checked, Worker};

/// Bytes of an answer's end that are looked at first: in most answers the counts are the last or the last but one thing. Token
/// ids or log probabilities of the prompt may follow them, and all that was generated; then the whole answer is looked at.
const LOOKED_AT: usize = 1024;

/// Waits for the end of one answer.
pub(crate) struct Report {
    /// `None` if the policy predicts nothing.
    prediction: Option<Prediction>,
    /// The last reads, latest last: shared with the response, so that keeping them costs no copy.
    last: [Bytes; 3],
    /// Has looked through the reads before those.
    before: Option<Box<UsageScan>>,
}

/// What was predicted of a prompt.
pub(crate) struct Prediction {
    pub worker: Arc<Worker>,
    pub policy: Arc<Policy>,
    pub choice: Choice,
    /// Bytes of the prompt if it was text and they are known, else 0: ids count themselves.
    pub text_bytes: u32,
}

impl Report {
    /// For an answer to a request with a prompt.
    pub(crate) fn new(prediction: Prediction) -> Self {
        let is_of_use = prediction.choice.key_len > 0 || prediction.text_bytes > 0;
        let prediction = is_of_use.then_some(prediction);
        Self { prediction, last: Default::default(), before: None }
    }

    /// Bytes of the body came, if it is no stream.
    pub(crate) fn take_in(&mut self, chunk: &Bytes) {
        self.last.rotate_left(1);
        let before = std::mem::replace(&mut self.last[2], chunk.clone());
        if !before.is_empty() {
            self.before.get_or_insert_default().more(&before);
        }
    }

    /// The body is whole. `told` is what the records of a stream told.
    pub(crate) fn end(mut self, told: Option<Usage>) -> Usage {
        let told = told.unwrap_or_else(|| self.read());
        if let Some(prediction) = self.prediction {
            prediction.compare(told);
        }
        told
    }

    fn read(&mut self) -> Usage {
        let at_end = self.read_end();
        if !at_end.is_empty() {
            return at_end;
        }
        let mut scan = self.before.take().unwrap_or_default();
        let [first, second, latest] = &self.last;
        [first, second].into_iter().for_each(|piece| scan.more(piece));
        scan.end(latest)
    }

    fn read_end(&self) -> Usage {
        let [.., latest] = &self.last;
        let joined = (latest.len() < LOOKED_AT && !self.last[1].is_empty()).then(|| self.last.concat());
        let text = joined.as_deref().unwrap_or(latest);
        Usage::at_end(&text[text.len().saturating_sub(LOOKED_AT)..])
    }
}

impl Prediction {
    fn compare(&self, told: Usage) {
        let Some(prompt) = told.prompt_tokens.filter(|&tokens| tokens > 0) else { return };
        if self.text_bytes > 0 {
            self.policy.learn_tokens(u64::from(self.text_bytes), prompt);
        }
        if let Some(reported) = told.cached_tokens.filter(|_| self.choice.key_len > 0) {
            let predicted = predicted_cached(&self.choice, prompt);
            self.worker.predictions().checked(Checked { prompt, predicted, reported });
        }
    }
}

/// Tokens of a prompt of so many, as its worker counted them, that the choice took to be cached there.
pub(crate) fn predicted_cached(choice: &Choice, prompt: u64) -> u64 {
    let uncached = u128::from(prompt) * u128::from(choice.uncached_tokens);
    let uncached = (uncached / u128::from(choice.prompt_tokens.max(1))) as u64;
    prompt.saturating_sub(uncached)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_policy::{Ask, PolicySettings, PrefixKey};
    use forebay_workers::{BreakerSettings, By, HealthSettings, Models, Tried, registry};

    /// What is counted of an answer that comes in pieces of `size` bytes.
    fn told(answer: &str, size: usize) -> Checked {
        let (reader, writer) =
            registry(PolicySettings::default(), 1, HealthSettings::default(), BreakerSettings::default());
        let host = writer.add("http://w:1".parse().unwrap());
        let worker = Arc::clone(&host.workers()[0]);
        writer.learnt(&host, Models::Any, None);
        writer.probed(&host, true);
        let mut key = PrefixKey::new();
        let mut builder = key.builder(0);
        builder.push(&[b'a'; 4000]);
        builder.finish();
        let world = reader.world();
        let pool = world.pool(By::Rank, None).unwrap();
        let ask = Ask { prefix: Some(&key), ..Ask::default() };
        drop(pool.select(&ask, &Tried::default()));
        let choice = pool.select(&ask, &Tried::default()).unwrap().unwrap().choice;
        let mut report = Report::new(Prediction {
            worker: Arc::clone(&worker),
            policy: Arc::clone(pool.policy()),
            choice,
            text_bytes: choice.key_len,
        });
        answer.as_bytes().chunks(size).for_each(|chunk| report.take_in(&Bytes::copy_from_slice(chunk)));
        report.end(None);
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
    fn counts_in_front_of_all_that_was_generated_or_of_the_prompts_token_ids_are_found_as_well() {
        let ids = "151644,".repeat(20_000);
        let counts = r#""usage":{"prompt_tokens":500,"total_tokens":516,"completion_tokens":16,"prompt_tokens_details":{"cached_tokens":480}}"#;
        let generated = format!(r#"{{"request_id":"r",{counts},"choices":[{{"token_ids":[{ids}1]}}]}}"#);
        let chat = format!(
            r#"{{"choices":[{ids}1],{counts},"prompt_logprobs":null,"prompt_token_ids":[{ids}1],"kv_transfer_params":null}}"#
        );
        for answer in [generated, chat] {
            for size in [100, 1000, 1024, 5000, 65_536, 1_000_000] {
                let told = told(&answer, size);
                assert_eq!((told.prompt, told.reported), (500, 480), "{size}");
            }
        }
    }

    #[test]
    fn an_answer_without_counts_says_nothing() {
        for answer in ["", "{}", r#"{"usage":null}"#, r#"{"usage":{"prompt_tokens":5}}"#] {
            assert_eq!(told(answer, 10), Checked { prompt: 0, predicted: 0, reported: 0 }, "{answer}");
        }
    }
}

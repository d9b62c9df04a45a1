//! One decode leg: the request that fetches blocks and answers the client, held until its answer has really begun. It chooses
//! nobody.

use std::future::poll_fn;
use std::sync::LazyLock;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use forebay_openai::{RecordKind, SseScanner};
use forebay_pd::lmcache::Continuation;
use forebay_pd::{Correction, Endpoint, LegFailure};
use forebay_workers::Guard;
use http::header::CONTENT_LENGTH;
use memchr::memmem::Finder;

use crate::attempt::{Attempt, AttemptError};
use crate::classify::Asked;
use crate::failure::Failure;
use crate::forward::heed_pause;
use crate::forwarded::{Chosen, Forwarded};
use crate::headers::is_event_stream;
use crate::leg::Leg;
use crate::outcome::Outcome;
use crate::prefill::bad;
use crate::retry::Again;
use crate::upstream::{Answer, BodyError, Upstream};

/// Longest answer that is held whole, in bytes. A longer one is a failure of the worker.
const ANSWER_LIMIT: usize = 1024 * 1024 * 1024;

/// Events that open an answer before anything is known of the blocks.
const OF_RESPONSES: [&[u8]; 2] = [b"event: response.created", b"event: response.in_progress"];
const OF_MESSAGES: [&[u8]; 2] = [b"event: message_start", b"event: ping"];

/// What the first chunk of a chat holds, which says no more than who will speak.
static OF_CHAT: LazyLock<Finder<'static>> =
    LazyLock::new(|| Finder::new(br#""delta":{"role":"assistant","content":""}"#));

/// How a decode leg ended, or began to answer.
pub(crate) enum DecodeEnd {
    /// Its answer can go to the client.
    Began(Box<Forwarded>),
    /// Its answer is a bad one.
    Answered(LegFailure, Box<Forwarded>),
    /// Nothing of it was sent.
    Unsent(Failure),
    /// There is no answer. `by_age` says that a kept connection may just have been too old.
    Broken { failure: Failure, by_age: bool },
    /// It broke off before anything was computed: some engines say in this way that they could not fetch the blocks.
    BrokeAtOnce(Failure),
    /// It took too long.
    TimedOut,
}

/// A decode leg.
pub(crate) struct DecodeLeg<'a> {
    pub attempt: Attempt<'a>,
    pub endpoint: Endpoint,
    pub limit: Option<Duration>,
    /// The leg's body, and whether a worker must not get it twice.
    pub asked: Asked,
    pub chosen_ms: u64,
    /// What is put right in a whole answer.
    pub correction: Correction,
    /// The first token, if another worker made it.
    pub continuation: Option<Box<Continuation>>,
    /// What goes with the answer.
    pub chosen: Chosen,
}

impl DecodeLeg<'_> {
    /// Sends it once, and waits for its answer to begin.
    pub(crate) async fn run(self, guard: Guard) -> DecodeEnd {
        match self.limit {
            Some(limit) => {
                tokio::time::timeout(limit, self.exchange(guard)).await.unwrap_or(DecodeEnd::TimedOut)
            }
            None => self.exchange(guard).await,
        }
    }

    async fn exchange(self, guard: Guard) -> DecodeEnd {
        let mut answer = match self.attempt.once(guard.worker(), &self.asked).await {
            Ok(answer) => answer,
            Err(error) => {
                let by_age = error.is_by_age();
                let unsent = matches!(error, AttemptError::Unreachable(_));
                let failure = error.charged(guard);
                return if unsent {
                    DecodeEnd::Unsent(failure)
                } else {
                    DecodeEnd::Broken { failure, by_age }
                };
            }
        };
        let status = bad(answer.status);
        heed_pause(Again::of(answer.status), &answer, guard.worker());
        let leg = Leg::new(guard, Outcome::of_status(answer.status).verdict(), self.chosen_ms);
        if let Some(failure) = status {
            return answered(failure, answer, leg);
        }
        let is_stream = is_event_stream(&answer.headers);
        let begun = if is_stream {
            self.first_record(&mut answer.body).await
        } else {
            self.whole(&mut answer).await.map(|()| RecordKind::Data)
        };
        match begun {
            Ok(RecordKind::Error) => answered(LegFailure::Doubtful, answer, leg),
            Ok(_) => {
                let chosen = Some(self.chosen);
                let continuation = self.continuation.filter(|_| is_stream);
                let forwarded = Forwarded { chosen, continuation, ..Forwarded::of_leg(answer, leg) };
                DecodeEnd::Began(Box::new(forwarded))
            }
            Err(error) => {
                tracing::warn!(worker = leg.worker().name(), %error, "the answer of a decode leg broke off");
                if is_stream && self.endpoint == Endpoint::Responses {
                    return DecodeEnd::BrokeAtOnce(Failure::WorkerDied);
                }
                leg.broke();
                DecodeEnd::Broken { failure: Failure::WorkerDied, by_age: false }
            }
        }
    }

    /// Takes in all of an answer that is no stream, so that it can still be asked for elsewhere if it breaks off.
    async fn whole(&self, answer: &mut Answer) -> Result<(), BodyError> {
        let body = std::mem::replace(&mut answer.body, Upstream::ready(Bytes::new()));
        let content = body.collect(ANSWER_LIMIT).await?;
        answer.headers.remove(CONTENT_LENGTH);
        let content = content.into();
        answer.body = Upstream::ready(match &self.continuation {
            None => self.correction.of_answer(content),
            Some(continuation) => continuation.of_answer(&content).ok_or_else(no_completion)?,
        });
        Ok(())
    }

    /// Waits for the first record that says how the request goes, and leaves everything that came in the body.
    async fn first_record(&self, body: &mut Upstream) -> Result<RecordKind, BodyError> {
        let mut scanner = SseScanner::default();
        let mut came = Bytes::new();
        let mut from = 0;
        let mut kind = None;
        while kind.is_none() {
            let Some(chunk) = poll_fn(|cx| body.poll_chunk(cx)).await else { break };
            let (chunk, before) = (chunk?, came.len());
            came = joined(&came, &chunk);
            scanner.feed(&chunk, |record| {
                let to = before + record.end;
                if kind.is_none() && record.kind != RecordKind::Comment && !self.is_opening(&came[from..to]) {
                    kind = Some(record.kind);
                }
                from = to;
            });
        }
        body.unread(came);
        // A stream that ends without a word is the worker's answer all the same.
        Ok(kind.unwrap_or(RecordKind::Data))
    }

    fn is_opening(&self, record: &[u8]) -> bool {
        let starts = |lines: &[&[u8]]| lines.iter().any(|line| record.starts_with(line));
        match self.endpoint {
            Endpoint::Responses => starts(&OF_RESPONSES),
            Endpoint::Messages => starts(&OF_MESSAGES),
            Endpoint::Chat => OF_CHAT.find(record).is_some(),
            Endpoint::Completions | Endpoint::Generate => false,
        }
    }
}

fn answered(failure: LegFailure, answer: Answer, mut leg: Leg) -> DecodeEnd {
    if failure == LegFailure::Doubtful {
        // It may have been the prefill worker that died.
        leg.says_nothing();
    }
    DecodeEnd::Answered(failure, Box::new(Forwarded::of_leg(answer, leg)))
}

/// What a decode worker answered is not what it was asked for.
fn no_completion() -> BodyError {
    BodyError::Io(std::io::ErrorKind::InvalidData.into())
}

fn joined(before: &Bytes, chunk: &Bytes) -> Bytes {
    if before.is_empty() {
        return chunk.clone();
    }
    let mut all = BytesMut::with_capacity(before.len() + chunk.len());
    all.extend_from_slice(before);
    all.extend_from_slice(chunk);
    all.freeze()
}

//! The ways a worker can misbehave, and which requests meet which of them. What each does to the bytes is in `script`.

use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use crate::engine::mix;
use crate::lock::Held;

/// One way to misbehave on a request. A request can ask for one with the header `x-sim-fault: name` or
/// `x-sim-fault: name=number`; the names are the variants in kebab case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Reads the request and stays silent until the client leaves.
    NeverAnswer,
    /// Reads the request and closes.
    CloseBeforeHead,
    /// Closes after so many bytes of the body; what came along is not read.
    CloseAfterRequestBytes(usize),
    /// Closes in the middle of the answer's head.
    CloseMidHead,
    /// Sends bytes that are no HTTP, and closes.
    Garbage,
    /// Answers with a header value of so many bytes.
    HugeHead(usize),
    /// Answers with this status and body.
    Status(u16, String),
    /// Sends the answer byte by byte with this pause in between (in the header: milliseconds).
    ByteByByte(Duration),
    /// Sends the head of the answer and stays silent.
    HeadThenSilence,
    /// Stays silent after so many records of a stream (or half of a whole answer).
    StallMidStream(usize),
    /// Closes after so many records of a stream (or half of a whole answer).
    CloseMidStream(usize),
    /// Closes within the record after so many records.
    CloseMidRecord(usize),
    /// Sends everything including `[DONE]`, but closes without the last chunk that ends the message.
    CloseAfterDone,
    /// Resets the connection instead of answering.
    Reset,
    /// Resets the connection after so many records of a stream (or half of a whole answer).
    ResetMidStream(usize),
    /// Declares so many bytes more than it sends, and closes.
    LengthTooLong(usize),
    /// Declares so many bytes fewer than it sends.
    LengthTooShort(usize),
    /// Sends something that is no chunk after so many records, and closes.
    ChunkedGarbage(usize),
    /// Promises to keep the connection and closes it right after the answer.
    CloseAfterAnswer,
    /// Answers with `connection: close`, and closes.
    ConnectionClose,
    /// Answers with this status before the body is read, and closes.
    EarlyAnswer(u16),
    /// Sends an interim answer (100, 103, …) before the real one.
    Interim(u16),
    /// Sends an error record and `[DONE]` after so many records of a stream; a whole answer becomes a 500.
    ErrorInStream(usize),
    /// A prefill leg's answer hands nothing over.
    NoHandOver,
    /// A prefill leg's answer lacks the blocks of what it hands over.
    IncompleteHandOver,
    /// 503: the worker's queue of requests is full.
    QueueOverflow,
    /// 503: paused for a weight update.
    Paused,
    /// 503: elastic scaling is under way; the error is a text.
    Scaling,
    /// 429.
    TooManyRequests,
    /// 429, and not to be asked again for so many seconds.
    TryLater(u16),
    /// 500 with the sanitised message.
    InternalError,
    /// 500 of a dead engine; `/health` answers 503 from then on.
    EngineDead,
}

/// A fault's name is not one of the known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown fault `{0}`")]
pub struct UnknownFault(String);

impl FromStr for Fault {
    type Err = UnknownFault;

    fn from_str(text: &str) -> Result<Self, UnknownFault> {
        let text = text.trim();
        let (name, argument) = text.split_once('=').unwrap_or((text, ""));
        let number = |default: usize| argument.trim().parse().unwrap_or(default);
        let status = |default: u16| argument.trim().parse().unwrap_or(default);
        Ok(match name.trim() {
            "never-answer" => Self::NeverAnswer,
            "close-before-head" => Self::CloseBeforeHead,
            "close-after-request-bytes" => Self::CloseAfterRequestBytes(number(0)),
            "close-mid-head" => Self::CloseMidHead,
            "garbage" => Self::Garbage,
            "huge-head" => Self::HugeHead(number(1 << 20)),
            "status" => Self::Status(status(500), String::new()),
            "byte-by-byte" => Self::ByteByByte(Duration::from_millis(number(0) as u64)),
            "head-then-silence" => Self::HeadThenSilence,
            "stall-mid-stream" => Self::StallMidStream(number(1)),
            "close-mid-stream" => Self::CloseMidStream(number(1)),
            "close-mid-record" => Self::CloseMidRecord(number(1)),
            "close-after-done" => Self::CloseAfterDone,
            "reset" => Self::Reset,
            "reset-mid-stream" => Self::ResetMidStream(number(1)),
            "length-too-long" => Self::LengthTooLong(number(10)),
            "length-too-short" => Self::LengthTooShort(number(10)),
            "chunked-garbage" => Self::ChunkedGarbage(number(1)),
            "close-after-answer" => Self::CloseAfterAnswer,
            "connection-close" => Self::ConnectionClose,
            "early-answer" => Self::EarlyAnswer(status(413)),
            "interim" => Self::Interim(status(103)),
            "error-in-stream" => Self::ErrorInStream(number(1)),
            "no-hand-over" => Self::NoHandOver,
            "incomplete-hand-over" => Self::IncompleteHandOver,
            "queue-overflow" => Self::QueueOverflow,
            "paused" => Self::Paused,
            "scaling" => Self::Scaling,
            "too-many-requests" => Self::TooManyRequests,
            "try-later" => Self::TryLater(status(1)),
            "internal-error" => Self::InternalError,
            "engine-dead" => Self::EngineDead,
            _ => return Err(UnknownFault(text.to_owned())),
        })
    }
}

/// How many of the requests meet a fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// The next so many.
    Next(usize),
    /// Every one.
    Always,
    /// A share between 0 and 1, drawn from a seed.
    Share {
        /// Probability that a request meets the fault.
        probability: f64,
        /// Start of the draw; the same seed draws the same requests.
        seed: u64,
    },
}

/// Which requests count for a fault.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Those that carry a prompt.
    #[default]
    Inference,
    /// All of them, health probes included.
    All,
    /// Those for one path (without query).
    Path(String),
}

/// A fault and the requests that meet it.
#[derive(Clone, Debug, PartialEq)]
pub struct FaultRule {
    /// What happens.
    pub fault: Fault,
    /// How often.
    pub when: When,
    /// To which requests.
    pub scope: Scope,
}

#[derive(Debug, Default)]
pub(crate) struct Faults {
    armed: AtomicBool,
    rules: Mutex<Vec<FaultRule>>,
}

impl Faults {
    /// Whether there is any rule: asked on every request, so it costs one load.
    pub(crate) fn any(&self) -> bool {
        self.armed.load(Relaxed)
    }

    pub(crate) fn add(&self, rule: FaultRule) {
        self.rules.held().push(rule);
        self.armed.store(true, Relaxed);
    }

    pub(crate) fn clear(&self) {
        self.rules.held().clear();
        self.armed.store(false, Relaxed);
    }

    /// The fault that a request meets, if any; the first rule that hits counts.
    pub(crate) fn meet(&self, path: &[u8], inference: bool) -> Option<Fault> {
        if !self.any() {
            return None;
        }
        let mut rules = self.rules.held();
        let hit = rules
            .iter_mut()
            .position(|rule| covers(&rule.scope, path, inference) && strikes(&mut rule.when))?;
        let fault = rules[hit].fault.clone();
        if rules[hit].when == When::Next(0) {
            rules.remove(hit);
        }
        self.armed.store(!rules.is_empty(), Relaxed);
        Some(fault)
    }
}

fn covers(scope: &Scope, path: &[u8], inference: bool) -> bool {
    match scope {
        Scope::Inference => inference,
        Scope::All => true,
        Scope::Path(wanted) => wanted.as_bytes() == path,
    }
}

fn strikes(when: &mut When) -> bool {
    match when {
        When::Next(0) => false,
        When::Next(left) => {
            *left -= 1;
            true
        }
        When::Always => true,
        When::Share { probability, seed } => {
            *seed = mix(*seed);
            // 53 bits are what a double holds exactly.
            ((*seed >> 11) as f64) < *probability * (1u64 << 53) as f64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(fault: Fault, when: When, scope: Scope) -> FaultRule {
        FaultRule { fault, when, scope }
    }

    #[test]
    fn the_next_n_requests_in_scope_meet_the_fault() {
        let faults = Faults::default();
        faults.add(rule(Fault::Reset, When::Next(2), Scope::Inference));
        assert_eq!(faults.meet(b"/health", false), None);
        assert_eq!(faults.meet(b"/v1/completions", true), Some(Fault::Reset));
        assert_eq!(faults.meet(b"/v1/completions", true), Some(Fault::Reset));
        assert_eq!(faults.meet(b"/v1/completions", true), None);
        assert!(!faults.any());
    }

    #[test]
    fn a_share_replays_from_its_seed_and_is_about_right() {
        let draw = || {
            let faults = Faults::default();
            faults.add(rule(Fault::Reset, When::Share { probability: 0.25, seed: 7 }, Scope::All));
            (0..4000).map(|_| faults.meet(b"/x", false).is_some()).collect::<Vec<_>>()
        };
        let hits = draw().iter().filter(|&&hit| hit).count();
        assert!((900..1100).contains(&hits), "{hits}");
        assert_eq!(draw(), draw());
    }

    #[test]
    fn rules_for_a_path_leave_the_others_alone() {
        let faults = Faults::default();
        faults.add(rule(Fault::EngineDead, When::Always, Scope::Path("/health".to_owned())));
        assert_eq!(faults.meet(b"/v1/completions", true), None);
        assert_eq!(faults.meet(b"/health", false), Some(Fault::EngineDead));
    }

    #[test]
    fn names_carry_numbers() {
        assert_eq!("close-mid-stream=3".parse(), Ok(Fault::CloseMidStream(3)));
        assert_eq!(" status=418 ".parse(), Ok(Fault::Status(418, String::new())));
        assert_eq!("byte-by-byte=2".parse(), Ok(Fault::ByteByByte(Duration::from_millis(2))));
        assert!("nonsense".parse::<Fault>().is_err());
    }
}

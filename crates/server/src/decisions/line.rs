//! What a line of the decision log looks like. Each is a JSON object with one member, whose name says what it is.

use std::borrow::Cow;

use forebay_policy::{Choice, HashKeyKind, PolicySettings, Slot};
use forebay_workers::note::{Ended, PolicyMade, Seen};
use serde::{Deserialize, Serialize};

/// Number of this format.
pub(crate) const FORMAT: u32 = 1;

/// What the numbers of a candidate are.
const CANDIDATE: [&str; 6] = ["slot", "eligible", "in_flight", "pending_tokens", "cache_tokens", "served"];

/// One line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    Header(Header),
    Policy(PolicyLine),
    Choice(Box<ChoiceLine>),
    Forget {
        seq: u64,
        policy: u32,
        slot: u32,
    },
    WorkerAdded {
        seq: u64,
        slot: u32,
        name: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rank: Option<u32>,
    },
    WorkerRemoved {
        seq: u64,
        slot: u32,
    },
    WorkerProbed {
        seq: u64,
        slot: u32,
        up: bool,
    },
    Capacity {
        seq: u64,
        slot: u32,
        tokens: u64,
    },
    Reset {
        seq: u64,
        epoch: u64,
        seed: u64,
        /// Whether policies begin with nothing.
        policies: bool,
    },
    Ended(EndedLine),
    /// Keys refer to no line before this one.
    KeysBeginAnew {},
    End(EndLine),
}

/// The first line.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Header {
    pub(crate) format: u32,
    /// Version of the program.
    pub(crate) forebay: String,
    pub(crate) started_unix_ms: u64,
    pub(crate) seed: u64,
    pub(crate) settings: PolicySettings,
    /// Workers given from the start.
    pub(crate) workers: Vec<String>,
    /// Names of the numbers in `candidates`.
    candidate: Vec<Cow<'static, str>>,
}

/// A policy begins with nothing.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PolicyLine {
    pub(crate) seq: u64,
    pub(crate) policy: u32,
    pub(crate) epoch: u64,
    pub(crate) model: String,
    pub(crate) seed: u64,
    pub(crate) settings: PolicySettings,
}

/// A policy was asked for a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ChoiceLine {
    pub(crate) seq: u64,
    pub(crate) policy: u32,
    pub(crate) epoch: u64,
    pub(crate) generation: u64,
    pub(crate) request: String,
    pub(crate) attempt: u32,
    /// On the process's clock.
    pub(crate) ms: u64,
    pub(crate) streamed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<KeyLine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hash: Option<HashLine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) counted: Option<u64>,
    pub(crate) tokens: u64,
    pub(crate) candidates: Vec<CandidateLine>,
    /// `null` if nobody could be chosen.
    pub(crate) chosen: Option<ChosenLine>,
}

/// The prompt of a choice: the first `blocks` blocks of the key of line `from`, then new ones.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct KeyLine {
    pub(crate) bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<u64>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) blocks: usize,
    /// 16 hexadecimal digits for each.
    pub(crate) new: String,
}

/// The key for the hash ring.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HashLine {
    pub(crate) kind: HashKeyKind,
    /// 16 hexadecimal digits.
    pub(crate) hash: String,
}

/// Slot, 1 if eligible, in flight, pending tokens, cache tokens, served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CandidateLine(u32, u8, u32, u64, u64, u64);

/// What was chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChosenLine {
    pub(crate) slot: u32,
    pub(crate) reason: Cow<'static, str>,
    pub(crate) matched: u32,
    pub(crate) prompt_tokens: u32,
    pub(crate) uncached_tokens: u32,
    pub(crate) draw: u64,
}

/// How a request ended.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct EndedLine {
    pub(crate) seq: u64,
    /// `seq` of the last choice made for it.
    pub(crate) choice: u64,
    pub(crate) request: String,
    pub(crate) outcome: Cow<'static, str>,
    pub(crate) status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) first_token_us: Option<u64>,
    pub(crate) took_us: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cached_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) completion_tokens: Option<u64>,
    /// Id of the prefill/decode pair that it became.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) room: Option<u64>,
}

/// The last line.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct EndLine {
    /// Lines that were written, this one and the header not counted.
    pub(crate) lines: u64,
    /// Lines for which there was no room.
    pub(crate) dropped: u64,
    /// Whether all that choices depended on is here.
    pub(crate) exact: bool,
}

impl Header {
    pub(crate) fn new(
        started_unix_ms: u64,
        seed: u64,
        settings: PolicySettings,
        workers: Vec<String>,
    ) -> Self {
        Self {
            format: FORMAT,
            forebay: env!("CARGO_PKG_VERSION").to_owned(),
            started_unix_ms,
            seed,
            settings,
            workers,
            candidate: CANDIDATE.map(Cow::Borrowed).into(),
        }
    }
}

impl PolicyLine {
    pub(crate) fn new(seq: u64, made: PolicyMade) -> Self {
        let PolicyMade { policy, epoch, model, seed, settings } = made;
        Self { seq, policy, epoch, model: (*model).to_owned(), seed, settings }
    }
}

impl From<&Choice> for ChosenLine {
    fn from(choice: &Choice) -> Self {
        Self {
            slot: choice.slot.0,
            reason: choice.reason.as_str().into(),
            matched: choice.matched,
            prompt_tokens: choice.prompt_tokens,
            uncached_tokens: choice.uncached_tokens,
            draw: choice.draw,
        }
    }
}

impl From<&Seen> for CandidateLine {
    fn from(seen: &Seen) -> Self {
        let Seen { slot, eligible, in_flight, pending_tokens, cache_tokens, served } = *seen;
        Self(slot.0, u8::from(eligible), in_flight, pending_tokens, cache_tokens, served)
    }
}

impl CandidateLine {
    /// The worker.
    pub(crate) fn slot(self) -> u32 {
        self.0
    }
}

impl From<CandidateLine> for Seen {
    fn from(line: CandidateLine) -> Self {
        let CandidateLine(slot, eligible, in_flight, pending_tokens, cache_tokens, served) = line;
        let (slot, eligible) = (Slot(slot), eligible != 0);
        Self { slot, eligible, in_flight, pending_tokens, cache_tokens, served }
    }
}

impl EndedLine {
    pub(crate) fn new(seq: u64, ended: &Ended) -> Self {
        Self {
            seq,
            choice: ended.asked,
            request: String::from_utf8_lossy(&ended.request).into_owned(),
            outcome: ended.outcome.into(),
            status: ended.status,
            first_token_us: ended.first_token_us,
            took_us: ended.took_us,
            prompt_tokens: ended.prompt_tokens,
            cached_tokens: ended.cached_tokens,
            completion_tokens: ended.completion_tokens,
            room: ended.room,
        }
    }
}

impl Line {
    /// Its place in the order, if it has one.
    pub(crate) fn seq(&self) -> Option<u64> {
        match self {
            Self::Policy(line) => Some(line.seq),
            Self::Choice(line) => Some(line.seq),
            Self::Ended(line) => Some(line.seq),
            Self::Forget { seq, .. }
            | Self::WorkerAdded { seq, .. }
            | Self::WorkerRemoved { seq, .. }
            | Self::WorkerProbed { seq, .. }
            | Self::Capacity { seq, .. }
            | Self::Reset { seq, .. } => Some(*seq),
            Self::Header(_) | Self::KeysBeginAnew {} | Self::End(_) => None,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

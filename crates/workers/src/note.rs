//! What the record of decisions holds: each choice with all that it depended on, and what changed a policy's state. Data
//! only; who writes it down, and how, is not known here.

use std::sync::Arc;

use forebay_policy::{Choice, HashKey, PolicySettings, Slot};

/// Something that happened.
#[derive(Debug)]
pub enum Note {
    /// A policy begins with nothing.
    Policy(PolicyMade),
    /// A policy was asked.
    Asked(Box<Asked>),
    /// A policy believes no more that a worker holds anything.
    Forgot {
        /// Number of the policy.
        policy: u32,
        /// The worker.
        slot: Slot,
    },
    /// A worker was registered, or came back.
    Added {
        /// Its slot.
        slot: Slot,
        /// Its name, `url` or `url@rank`.
        name: Box<str>,
        /// Its data-parallel rank, if ranks are told apart.
        rank: Option<u32>,
    },
    /// A worker was taken off the list.
    Removed {
        /// Its slot.
        slot: Slot,
    },
    /// Probes took a worker out of rotation, or brought it back.
    Probed {
        /// Its slot.
        slot: Slot,
        /// Whether it may be chosen.
        up: bool,
    },
    /// How much a worker's prefix cache holds is known, or has changed.
    Capacity {
        /// The worker.
        slot: Slot,
        /// Tokens; 0 if not known.
        tokens: u64,
    },
    /// A new trial begins.
    Reset {
        /// Its number.
        epoch: u64,
        /// What its randomness starts from.
        seed: u64,
        /// Whether its policies begin with nothing.
        policies: bool,
    },
    /// A request that a worker was chosen for is over.
    Ended(Box<Ended>),
}

/// A policy that begins with nothing.
#[derive(Debug)]
pub struct PolicyMade {
    /// Its number, never used again.
    pub policy: u32,
    /// The trial that it belongs to.
    pub epoch: u64,
    /// The model, empty if no single one.
    pub model: Arc<str>,
    /// What its randomness starts from.
    pub seed: u64,
    /// Which policy, and its knobs.
    pub settings: PolicySettings,
}

/// Who asks a policy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asker<'a> {
    /// Id of the request.
    pub request: &'a [u8],
    /// Choices that were made for it before.
    pub attempt: u32,
}

/// A question to a policy, all that the answer depends on beside the policy's own state, and the answer.
#[derive(Debug)]
pub struct Asked {
    /// Number of the policy.
    pub policy: u32,
    /// The trial.
    pub epoch: u64,
    /// Changes with the set of candidates.
    pub generation: u64,
    /// Id of the request.
    pub request: Box<[u8]>,
    /// Choices that were made for it before.
    pub attempt: u32,
    /// Milliseconds on the process's clock.
    pub now_ms: u64,
    /// Whether its first token will be seen.
    pub streamed: bool,
    /// Hashes of its prompt.
    pub blocks: Box<[u64]>,
    /// Bytes of its routing text.
    pub key_bytes: u64,
    /// Its key for the hash ring.
    pub hash: Option<HashKey>,
    /// Tokens of its prompt, where they could be counted.
    pub counted: Option<u64>,
    /// Tokens that the choice was made by.
    pub tokens: u64,
    /// What the policy saw of each candidate.
    pub candidates: Arc<[Seen]>,
    /// What it chose; `None` if nobody was eligible.
    pub choice: Option<Choice>,
}

/// What a policy saw of one candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The worker.
    pub slot: Slot,
    /// Whether it could be chosen.
    pub eligible: bool,
    /// Legs in flight.
    pub in_flight: u32,
    /// Tokens it had yet to prefill.
    pub pending_tokens: u64,
    /// Tokens that its prefix cache holds at most; 0 if not known.
    pub cache_tokens: u64,
    /// Times that it was chosen in this trial.
    pub served: u64,
}

/// How a request ended.
#[derive(Debug)]
pub struct Ended {
    /// Number of the note of the last choice made for it.
    pub asked: u64,
    /// Id of the request.
    pub request: Box<[u8]>,
    /// How it ended, in a word.
    pub outcome: &'static str,
    /// Status that the client got; 0 if none.
    pub status: u16,
    /// From the request's head to the first token of the answer, in µs.
    pub first_token_us: Option<u64>,
    /// From the request's head to the end, in µs.
    pub took_us: u64,
    /// Tokens of the prompt, if the worker told.
    pub prompt_tokens: Option<u64>,
    /// Those of them that were in its prefix cache, if it told.
    pub cached_tokens: Option<u64>,
    /// Tokens of the answer, if it told.
    pub completion_tokens: Option<u64>,
    /// Id of the prefill/decode pair that it became, if it did.
    pub room: Option<u64>,
}

impl Note {
    /// About how much memory it takes, in bytes.
    pub(crate) fn weight(&self) -> usize {
        let heap = match self {
            Self::Asked(asked) => {
                size_of::<Asked>()
                    + size_of_val(&*asked.blocks)
                    + size_of_val(&*asked.candidates)
                    + asked.request.len()
            }
            Self::Ended(ended) => size_of::<Ended>() + ended.request.len(),
            Self::Policy(made) => made.model.len(),
            Self::Added { name, .. } => name.len(),
            Self::Forgot { .. }
            | Self::Removed { .. }
            | Self::Probed { .. }
            | Self::Capacity { .. }
            | Self::Reset { .. } => 0,
        };
        size_of::<Self>() + heap
    }
}

//! What is asked of a policy, what it answers, and why. Data only.

use std::fmt;

use crate::fleet::Slot;
use crate::key::{HashKey, HashKeyKind, PrefixKey};

/// What a policy may know about a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ask<'a> {
    /// The prompt, for cache aware choices.
    pub prefix: Option<&'a PrefixKey>,
    /// Tokens of the prompt, where they can be counted (token ids); otherwise they are estimated.
    pub tokens: Option<u64>,
    /// Whether the answer is streamed, so that its first token will be seen.
    pub streamed: bool,
    /// The key for the hash ring.
    pub hash: Option<HashKey>,
    /// Milliseconds on any clock that does not run backwards.
    pub now_ms: u64,
}

/// A chosen worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Number of the candidate in the fleet that was asked.
    pub index: usize,
    /// The worker's slot.
    pub slot: Slot,
    /// Why this one.
    pub reason: Reason,
    /// Bytes at the head of the prompt that this worker is thought to have cached; 0 if not known.
    pub matched: u32,
    /// Bytes of the prompt; 0 without a prompt or if the policy does not read it.
    pub key_len: u32,
    /// Tokens of the prompt, counted or estimated; 0 if not known.
    pub prompt_tokens: u32,
    /// Those of them that this worker will have to compute, as far as is known; 0 if not known.
    pub uncached_tokens: u32,
    /// How many choices the policy made before this one: with the seed it replays the randomness.
    pub draw: u64,
}

/// What came of one question, for whoever keeps a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The choice; `None` if no candidate was eligible.
    pub choice: Option<Choice>,
    /// Tokens of the prompt that the question was decided by: counted, or estimated at that moment.
    pub tokens: u64,
}

/// Why a worker was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// It holds the longest known prefix of the prompt.
    PrefixHit,
    /// Nobody holds enough of the prompt (or there is none); it costs least.
    MissLeastCost,
    /// The holders of the prompt are too busy; it costs less although it holds too little, and becomes a holder.
    SpillLoad,
    /// It is the only eligible candidate.
    OnlyCandidate,
    /// It is its turn.
    Rotation,
    /// It was drawn.
    Draw,
    /// It has fewer requests in flight than the other one drawn, or is the first of two equals.
    FewerInFlight,
    /// It has the least load of all.
    LeastLoad,
    /// The ring gave it for the session header.
    SessionHeader,
    /// The ring gave it for the user header.
    UserHeader,
    /// The ring gave it for a session or user field of the body.
    Body,
    /// The ring gave it for the authorization header.
    Authorization,
    /// The ring gave it for the client's address.
    ClientIp,
    /// The ring gave it for a digest of the body.
    BodyHash,
    /// There was no key for the ring; it was drawn.
    NoKey,
    /// The ring's first worker for the key is not eligible; it comes next.
    NextOnRing,
}

impl Reason {
    /// All reasons, for resolving metric handles up front.
    pub const ALL: [Self; 16] = [
        Self::PrefixHit,
        Self::MissLeastCost,
        Self::SpillLoad,
        Self::OnlyCandidate,
        Self::Rotation,
        Self::Draw,
        Self::FewerInFlight,
        Self::LeastLoad,
        Self::SessionHeader,
        Self::UserHeader,
        Self::Body,
        Self::Authorization,
        Self::ClientIp,
        Self::BodyHash,
        Self::NoKey,
        Self::NextOnRing,
    ];

    /// Name in logs, headers and metric labels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PrefixHit => "prefix_hit",
            Self::MissLeastCost => "miss_least_cost",
            Self::SpillLoad => "spill_load",
            Self::OnlyCandidate => "only_candidate",
            Self::Rotation => "rotation",
            Self::Draw => "draw",
            Self::FewerInFlight => "fewer_in_flight",
            Self::LeastLoad => "least_load",
            Self::SessionHeader => "x_session_id",
            Self::UserHeader => "x_user_id",
            Self::Body => "body",
            Self::Authorization => "authorization",
            Self::ClientIp => "client_ip",
            Self::BodyHash => "body_hash",
            Self::NoKey => "no_key",
            Self::NextOnRing => "next_on_ring",
        }
    }
}

impl From<HashKeyKind> for Reason {
    fn from(kind: HashKeyKind) -> Self {
        match kind {
            HashKeyKind::SessionHeader => Self::SessionHeader,
            HashKeyKind::UserHeader => Self::UserHeader,
            HashKeyKind::Body => Self::Body,
            HashKeyKind::Authorization => Self::Authorization,
            HashKeyKind::ClientIp => Self::ClientIp,
            HashKeyKind::BodyHash => Self::BodyHash,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A candidate and why, before the policy adds the rest of a [`Choice`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pick {
    pub(crate) index: usize,
    pub(crate) reason: Reason,
    pub(crate) matched: u64,
    pub(crate) key_len: u64,
    pub(crate) prompt_tokens: u64,
    pub(crate) uncached_tokens: u64,
}

impl Pick {
    /// A pick that did not look at the prompt.
    pub(crate) const fn plain(index: usize, reason: Reason) -> Self {
        Self { index, reason, matched: 0, key_len: 0, prompt_tokens: 0, uncached_tokens: 0 }
    }
}

//! The ways in which workers hand KV blocks over. Knows their names and in which order their legs go.

use crate::table::Row;
use crate::{bootstrap, nccl, nixl, nixl_push};

/// How a prefill worker hands its blocks to a decode worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Connector {
    /// NIXL, pulled by the decode worker: what the prefill leg answers goes into the decode leg.
    #[default]
    Nixl,
    /// NIXL, pushed by the prefill worker: both legs share their request id.
    NixlPush,
    /// Both legs name the prefill worker's bootstrap server and a room in it.
    Bootstrap,
    /// P2P NCCL: both legs have a request id that names both workers.
    Nccl,
    /// LMCache: the prefill worker writes to a receiver that its leg names, and makes the first token.
    Lmcache,
}

/// In which order the legs go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The decode leg needs what the prefill leg answers.
    PrefillFirst,
    /// Both at once.
    Both,
}

impl Connector {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Nixl, Self::NixlPush, Self::Bootstrap, Self::Nccl, Self::Lmcache];

    /// Name in the command line, the config file and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nixl => "nixl",
            Self::NixlPush => "nixl_push",
            Self::Bootstrap => "bootstrap",
            Self::Nccl => "nccl",
            Self::Lmcache => "lmcache",
        }
    }

    /// The connector of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|connector| connector.as_str() == name)
    }

    /// Whether the legs find each other by the request id, so that it must be the router's own, new for each attempt.
    pub const fn pairs_by_request_id(self) -> bool {
        match self {
            Self::NixlPush | Self::Nccl => true,
            Self::Nixl | Self::Bootstrap | Self::Lmcache => false,
        }
    }

    /// Whether what both legs carry names this one attempt, so that neither may come twice with it, and nobody but the
    /// decode worker that was chosen can use it.
    pub const fn names_the_attempt(self) -> bool {
        match self {
            Self::NixlPush | Self::Bootstrap | Self::Nccl | Self::Lmcache => true,
            Self::Nixl => false,
        }
    }

    /// Whether the request id names the workers by addresses that they announce.
    pub const fn names_workers(self) -> bool {
        match self {
            Self::Nccl => true,
            Self::Nixl | Self::NixlPush | Self::Bootstrap | Self::Lmcache => false,
        }
    }

    /// Whether a decode worker can take a request that nobody has prefilled. One that cannot waits for blocks for ever, and
    /// with it everything that its engine does.
    pub const fn decodes_alone(self) -> bool {
        match self {
            Self::Nccl => false,
            Self::Nixl | Self::NixlPush | Self::Bootstrap | Self::Lmcache => true,
        }
    }

    /// Whether both legs may go at once although they need not.
    pub const fn may_be_concurrent(self) -> bool {
        match self {
            Self::Nccl => true,
            Self::Nixl | Self::NixlPush | Self::Bootstrap | Self::Lmcache => false,
        }
    }

    /// Whether the prefill worker's answer says nothing that the decode leg needs.
    pub const fn hands_over_unsaid(self) -> bool {
        match self {
            Self::Nccl => true,
            Self::Nixl | Self::NixlPush | Self::Bootstrap | Self::Lmcache => false,
        }
    }

    /// Whether the prefill worker makes the answer's first token, behind which the decode worker goes on.
    pub const fn makes_first_token(self) -> bool {
        match self {
            Self::Lmcache => true,
            Self::Nixl | Self::NixlPush | Self::Bootstrap | Self::Nccl => false,
        }
    }

    /// Whether several prompts in one request may be handed over together.
    pub const fn takes_batches(self) -> bool {
        match self {
            Self::Bootstrap => true,
            Self::Nixl | Self::NixlPush | Self::Nccl | Self::Lmcache => false,
        }
    }

    /// Whether the decode leg must not go before a prefill worker has told where it is reached.
    pub const fn needs_peer(self) -> bool {
        match self {
            Self::NixlPush => true,
            Self::Nixl | Self::Bootstrap | Self::Nccl | Self::Lmcache => false,
        }
    }

    /// Whether a decode worker goes on waiting for a prefill worker that is gone.
    pub const fn waits_for_peer(self) -> bool {
        match self {
            Self::NixlPush | Self::Bootstrap | Self::Nccl => true,
            Self::Nixl | Self::Lmcache => false,
        }
    }

    /// The order of the legs, given whether the prefill worker's coordinates are known.
    pub const fn order(self, peer_known: bool) -> Order {
        match self {
            Self::Nixl | Self::Nccl | Self::Lmcache => Order::PrefillFirst,
            Self::NixlPush if !peer_known => Order::PrefillFirst,
            Self::NixlPush | Self::Bootstrap => Order::Both,
        }
    }

    pub(crate) const fn table(self) -> &'static [&'static [Row]] {
        match self {
            Self::Nixl => nixl::TABLE,
            Self::NixlPush => nixl_push::TABLE,
            Self::Bootstrap => bootstrap::TABLE,
            Self::Nccl => nccl::TABLE,
            // Its legs are another API's.
            Self::Lmcache => &[],
        }
    }
}

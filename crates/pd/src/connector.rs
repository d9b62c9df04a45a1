//! The ways in which workers hand KV blocks over. Knows their names and in which order their legs go.

use crate::table::Row;
use crate::{bootstrap, nixl, nixl_push};

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
    pub const ALL: [Self; 3] = [Self::Nixl, Self::NixlPush, Self::Bootstrap];

    /// Name in the command line, the config file and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nixl => "nixl",
            Self::NixlPush => "nixl_push",
            Self::Bootstrap => "bootstrap",
        }
    }

    /// The connector of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|connector| connector.as_str() == name)
    }

    /// Whether the legs find each other by the request id, so that it must be the router's own, new for each attempt.
    pub const fn pairs_by_request_id(self) -> bool {
        match self {
            Self::NixlPush => true,
            Self::Nixl | Self::Bootstrap => false,
        }
    }

    /// Whether several prompts in one request may be handed over together.
    pub const fn takes_batches(self) -> bool {
        match self {
            Self::Bootstrap => true,
            Self::Nixl | Self::NixlPush => false,
        }
    }

    /// Whether the decode leg must not go before a prefill worker has told where it is reached.
    pub const fn needs_peer(self) -> bool {
        match self {
            Self::NixlPush => true,
            Self::Nixl | Self::Bootstrap => false,
        }
    }

    /// Whether a decode worker goes on waiting for a prefill worker that is gone.
    pub const fn waits_for_peer(self) -> bool {
        match self {
            Self::NixlPush | Self::Bootstrap => true,
            Self::Nixl => false,
        }
    }

    /// The order of the legs, given whether the prefill worker's coordinates are known.
    pub const fn order(self, peer_known: bool) -> Order {
        match self {
            Self::Nixl => Order::PrefillFirst,
            Self::NixlPush if !peer_known => Order::PrefillFirst,
            Self::NixlPush | Self::Bootstrap => Order::Both,
        }
    }

    pub(crate) const fn table(self) -> &'static [&'static [Row]] {
        match self {
            Self::Nixl => nixl::TABLE,
            Self::NixlPush => nixl_push::TABLE,
            Self::Bootstrap => bootstrap::TABLE,
        }
    }
}

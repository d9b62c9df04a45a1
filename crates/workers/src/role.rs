//! What a worker is for. Decides nothing.

/// The part of a request that a worker is given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// All of it.
    #[default]
    Regular,
    /// The prompt, for others to go on from.
    Prefill {
        /// Port of its bootstrap server, if it has one.
        bootstrap_port: Option<u16>,
    },
    /// What comes after the prompt, or all of it.
    Decode,
}

impl Role {
    /// Name in answers and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Regular => "regular",
            Self::Prefill { .. } => "prefill",
            Self::Decode => "decode",
        }
    }

    /// Whether it answers clients.
    pub const fn answers(self) -> bool {
        match self {
            Self::Regular | Self::Decode => true,
            Self::Prefill { .. } => false,
        }
    }
}

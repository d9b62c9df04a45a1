//! Members that could steer or kill an engine, and how they are cut from a body; must not decide who may send them.

use std::ops::Range;

use bytes::Bytes;
use memchr::{memchr, memmem};

use crate::{
    scalar,
    splice::{CommaRule, Splices},
    walk::{BodyError, KeyBuffer, Object},
};

/// A member that only a router may set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum InternalField {
    /// Hand-over of KV blocks between engines.
    KvTransferParams,
    /// Hand-over of encoder results between engines.
    EcTransferParams,
    /// Address of a prefill engine.
    BootstrapHost,
    /// Port of a prefill engine.
    BootstrapPort,
    /// Pair id of a prefill engine.
    BootstrapRoom,
    /// Hand-over in LMCache's way.
    DisaggSpec,
    /// Data-parallel rank to run on.
    RoutedDpRank,
    /// Data-parallel rank of the prefill engine.
    DisaggPrefillDpRank,
    /// Data-parallel rank to run on, older name.
    DataParallelRank,
    /// A request id of the form by which engines find each other; other ids stay.
    RequestId,
}

/// The object an internal field was found in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// The body itself.
    Top,
    /// `vllm_xargs`.
    VllmXargs,
    /// `sampling_params.extra_args`.
    ExtraArgs,
}

/// One occurrence of an internal field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Strip {
    /// Which field.
    pub field: InternalField,
    /// In which object.
    pub place: Place,
    /// The bytes to cut, one comma included where there is one.
    pub cut: Range<usize>,
}

impl InternalField {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::KvTransferParams,
        Self::EcTransferParams,
        Self::BootstrapHost,
        Self::BootstrapPort,
        Self::BootstrapRoom,
        Self::DisaggSpec,
        Self::RoutedDpRank,
        Self::DisaggPrefillDpRank,
        Self::DataParallelRank,
        Self::RequestId,
    ];

    /// The member's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::KvTransferParams => "kv_transfer_params",
            Self::EcTransferParams => "ec_transfer_params",
            Self::BootstrapHost => "bootstrap_host",
            Self::BootstrapPort => "bootstrap_port",
            Self::BootstrapRoom => "bootstrap_room",
            Self::DisaggSpec => "disagg_spec",
            Self::RoutedDpRank => "routed_dp_rank",
            Self::DisaggPrefillDpRank => "disagg_prefill_dp_rank",
            Self::DataParallelRank => "data_parallel_rank",
            Self::RequestId => "request_id",
        }
    }

    /// The field with this unescaped name.
    #[inline]
    pub fn from_name(name: &[u8]) -> Option<Self> {
        // The first byte rules out nearly every member of a normal body.
        if !matches!(name, [b'k' | b'e' | b'b' | b'd' | b'r', ..]) {
            return None;
        }
        Self::ALL.into_iter().find(|field| field.as_str().as_bytes() == name)
    }
}

impl InternalField {
    /// Whether the field is internal with this raw value: an ordinary request id is the client's own affair.
    #[inline]
    pub(crate) fn holds_with(self, raw: &[u8]) -> bool {
        self != Self::RequestId || scalar::string(raw).is_some_and(|id| is_engine_id(id.as_bytes()))
    }
}

/// Whether a request id has the form `___…_addr_…`, by which engines take an address from it.
pub fn is_engine_id(id: &[u8]) -> bool {
    if memchr(b'_', id).is_none() {
        return false;
    }
    let behind = memmem::find(id, b"___").map(|at| &id[at + 2..]);
    behind.is_some_and(|rest| memmem::find(rest, b"_addr_").is_some())
}

impl Place {
    /// Path of the object as shown to people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Top => "body",
            Self::VllmXargs => "vllm_xargs",
            Self::ExtraArgs => "sampling_params.extra_args",
        }
    }
}

/// The body without the given members, every other byte as it was; the body itself if there are none.
pub fn cut(body: &Bytes, strips: &[Strip]) -> Bytes {
    let mut splices = Splices::default();
    for strip in strips {
        splices.replace(strip.cut.clone(), Bytes::new());
    }
    splices.apply(body)
}

/// Collects the internal fields of the object at `at`, and returns where it ends.
pub(crate) fn collect(
    body: &[u8],
    at: usize,
    place: Place,
    strips: &mut Vec<Strip>,
) -> Result<usize, BodyError> {
    let mut object = Object::open(body, at)?;
    let mut rule = CommaRule::default();
    while let Some(key) = object.next_key()? {
        let value = object.skip_value()?;
        let field = InternalField::from_name(key.name(body, &mut KeyBuffer::default()));
        let Some(field) = field.filter(|field| field.holds_with(&body[value.start..value.end])) else {
            rule.keep();
            continue;
        };
        let cut = rule.cut(strips.len(), &key, value.end, object.comma_after());
        strips.push(Strip { field, place, cut });
    }
    finish(rule, strips);
    Ok(object.end())
}

/// Ends the comma rule of one object.
pub(crate) fn finish(rule: CommaRule, strips: &mut [Strip]) {
    if let Some((index, start)) = rule.finish() {
        strips[index].cut.start = start;
    }
}

#[cfg(test)]
mod tests;

//! How a connector's splices are written down: which member of which leg on which endpoints becomes what.

use crate::endpoint::Endpoint;
use crate::plan::LegKind;

/// One line of a connector's table.
pub(crate) struct Row {
    pub leg: LegKind,
    /// On these endpoints.
    pub on: &'static [Endpoint],
    /// The object it is in; the body itself if there is none.
    pub within: Option<&'static str>,
    pub edit: Edit,
}

/// What becomes of a member.
pub(crate) enum Edit {
    /// It gets this value, whether it is there or not.
    Set(&'static str, Value),
    /// It gets this value if it is there.
    Replace(&'static str, &'static str),
    /// It goes.
    Cut(&'static str),
}

/// Where a value comes from. A row whose value is not there does nothing.
#[derive(Clone, Copy)]
pub(crate) enum Value {
    /// This JSON.
    Json(&'static str),
    /// What the prefill worker handed over, or where it will push from.
    HandOver,
    /// The order to hand over to whoever registers under the shared request id.
    PushOrder,
    /// The shared request id.
    RequestId,
    /// The prefill worker's bootstrap server, and the room in it; lists of them for a batch of prompts.
    Host,
    Port,
    Room,
    /// The data-parallel ranks of the workers, where they are told apart; one for all prompts of a batch.
    PrefillRank,
    DecodeRank,
}

pub(crate) const ANY: &[Endpoint] = &Endpoint::ALL;

/// A line for one leg.
pub(crate) const fn row(leg: LegKind, on: &'static [Endpoint], edit: Edit) -> Row {
    Row { leg, on, within: None, edit }
}

const fn both(leg: LegKind) -> [Row; 3] {
    [
        row(leg, ANY, Edit::Set("bootstrap_host", Value::Host)),
        row(leg, ANY, Edit::Set("bootstrap_port", Value::Port)),
        row(leg, ANY, Edit::Set("bootstrap_room", Value::Room)),
    ]
}

/// The bootstrap server in the prefill leg.
pub(crate) const BOOTSTRAP_PREFILL: &[Row] = &both(LegKind::Prefill);

/// The same in the decode leg.
pub(crate) const BOOTSTRAP_DECODE: &[Row] = &both(LegKind::Decode);

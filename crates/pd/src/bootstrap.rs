//! Bootstrap: both legs are the client's request with the address of the prefill worker's bootstrap server and a room in it.

use crate::plan::LegKind::{Decode, Prefill};
use crate::table::{ANY, BOOTSTRAP_DECODE, BOOTSTRAP_PREFILL, Edit, Row, Value, row};

/// Nothing else changes but the ranks, which some engines read here and not in the head: the workers know their roles.
pub(crate) const TABLE: &[&[Row]] = &[
    BOOTSTRAP_PREFILL,
    BOOTSTRAP_DECODE,
    &[
        row(Prefill, ANY, Edit::Set("routed_dp_rank", Value::PrefillRank)),
        row(Decode, ANY, Edit::Set("routed_dp_rank", Value::DecodeRank)),
        row(Decode, ANY, Edit::Set("disagg_prefill_dp_rank", Value::PrefillRank)),
    ],
];

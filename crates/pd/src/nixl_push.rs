//! NIXL, pushed: the decode worker registers with the prefill worker, which finds its request by the id that both legs
//! share, and writes the blocks.

use crate::endpoint::Endpoint::Responses;
use crate::one_token;
use crate::plan::LegKind::{Decode, Prefill};
use crate::table::{ANY, Edit, Row, Value, row};

/// The Responses API takes its id from the body, the others from the head.
pub(crate) const TABLE: &[&[Row]] = &[
    one_token::ROWS,
    &[
        row(Prefill, ANY, Edit::Set("kv_transfer_params", Value::PushOrder)),
        row(Prefill, &[Responses], Edit::Set("request_id", Value::RequestId)),
        row(Decode, ANY, Edit::Set("kv_transfer_params", Value::HandOver)),
        row(Decode, &[Responses], Edit::Set("request_id", Value::RequestId)),
    ],
];

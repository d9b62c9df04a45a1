//! NIXL, pulled: the decode worker reads the blocks that the prefill worker's answer names.

use crate::one_token;
use crate::plan::LegKind::{Decode, Prefill};
use crate::table::{ANY, BOOTSTRAP_DECODE, BOOTSTRAP_PREFILL, Edit, Row, Value, row};

const ORDER: Value = Value::Json(
    r#"{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}"#,
);

/// The hand-over, and the bootstrap server where the prefill worker has one.
pub(crate) const TABLE: &[&[Row]] = &[
    one_token::ROWS,
    &[
        row(Prefill, ANY, Edit::Set("kv_transfer_params", ORDER)),
        row(Decode, ANY, Edit::Set("kv_transfer_params", Value::HandOver)),
    ],
    BOOTSTRAP_PREFILL,
    BOOTSTRAP_DECODE,
];

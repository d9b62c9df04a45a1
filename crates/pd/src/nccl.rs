//! P2P NCCL: the prefill worker writes the blocks to the decode worker, and each reads from the request id where the other
//! one is. Neither can do without: a prefill worker dies of a request that names nobody, a decode worker waits for ever.

use crate::endpoint::Endpoint::Responses;
use crate::one_token;
use crate::plan::LegKind::{Decode, Prefill};
use crate::table::{Edit, Row, Value, row};

/// The Responses API takes its id from the body, the others from the head. Nothing else changes: what is handed over has no
/// parameters.
pub(crate) const TABLE: &[&[Row]] = &[
    one_token::ROWS,
    &[
        row(Prefill, &[Responses], Edit::Set("request_id", Value::RequestId)),
        row(Decode, &[Responses], Edit::Set("request_id", Value::RequestId)),
    ],
];

/// The id of one attempt. `unique` is new for each: workers keep blocks by it.
pub fn request_id(prefill: &str, decode: &str, unique: &str) -> String {
    format!("___prefill_addr_{prefill}___decode_addr_{decode}_{unique}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_names_both_workers_as_their_patterns_want_it() {
        assert_eq!(
            request_id("10.0.0.7:21001", "10.0.0.9:22001", "0123456789abcdef0123456789abcdef"),
            "___prefill_addr_10.0.0.7:21001___decode_addr_10.0.0.9:22001_0123456789abcdef0123456789abcdef"
        );
    }
}

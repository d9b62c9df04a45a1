//! The splices of a leg that prefills and stops: exactly one token, not streamed, nothing kept.

use crate::endpoint::Endpoint::{Chat, Completions, Generate, Messages, Responses};
use crate::plan::LegKind::Prefill;
use crate::table::{ANY, Edit, Row, Value, row};

const ONE: Value = Value::Json("1");

/// More than one token would give blocks that do not fit the prompt, a stream would not tell of them. `min_tokens` of 1
/// keeps a first token from ending the request by itself; larger ones would be refused.
pub(crate) const ROWS: &[Row] = &[
    row(Prefill, &[Chat, Completions, Messages], Edit::Set("max_tokens", ONE)),
    row(Prefill, &[Chat, Completions], Edit::Set("min_tokens", ONE)),
    row(Prefill, &[Chat, Completions], Edit::Cut("min_completion_tokens")),
    row(Prefill, &[Chat], Edit::Replace("max_completion_tokens", "1")),
    row(Prefill, &[Responses], Edit::Set("max_output_tokens", ONE)),
    row(Prefill, &[Responses, Messages], Edit::Cut("min_tokens")),
    row(Prefill, &[Responses], Edit::Set("store", Value::Json("false"))),
    row(Prefill, &[Responses], Edit::Replace("background", "false")),
    row(Prefill, ANY, Edit::Replace("stream", "false")),
    row(Prefill, ANY, Edit::Cut("stream_options")),
    within_sampling(Edit::Set("max_tokens", ONE)),
    within_sampling(Edit::Set("min_tokens", ONE)),
];

const fn within_sampling(edit: Edit) -> Row {
    Row { leg: Prefill, on: &[Generate], within: Some("sampling_params"), edit }
}

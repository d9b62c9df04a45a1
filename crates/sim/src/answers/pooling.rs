//! Answers of the routes that produce vectors and scores. The numbers follow from the texts.

use serde_json::Value;

use crate::answer::{Answer, quoted};
use crate::engine::{BYTES_PER_TOKEN, hash};
use crate::prompt::rendered;
use crate::request::Request;
use crate::routes::Pooling;
use crate::state::State;

const DIMENSIONS: usize = 8;

pub(super) fn answer(state: &State, kind: Pooling, request: &Request<'_>, body: &Value) -> Answer {
    let made = match kind {
        Pooling::Embeddings | Pooling::Raw | Pooling::Classify => {
            inputs(body).map(|inputs| items(kind, body, &inputs)).ok_or("input")
        }
        Pooling::Score => score(body).ok_or("queries"),
        Pooling::Rerank => rerank(body).ok_or("query"),
    };
    let (data, tokens) = match made {
        Ok(made) => made,
        Err(field) => return Answer::invalid("missing", &format!("body.{field}"), "Field required"),
    };
    let prefix = match kind {
        Pooling::Embeddings => "embd",
        Pooling::Raw => "pool",
        Pooling::Classify => "classify",
        Pooling::Score => "score",
        Pooling::Rerank => "rerank",
    };
    let id = request.header("x-request-id").map_or_else(|| state.fresh_id(), str::to_owned);
    let id = quoted(&format!("{prefix}-{id}"));
    let base = state.model();
    let model = quoted(body.get("model").and_then(Value::as_str).unwrap_or(&base));
    let usage = format!(r#"{{"prompt_tokens":{tokens},"total_tokens":{tokens}"#);
    Answer::json(
        200,
        match kind {
            Pooling::Rerank => {
                format!(r#"{{"id":{id},"model":{model},"usage":{usage}}},"results":[{data}]}}"#)
            }
            _ => format!(
                r#"{{"id":{id},"object":"list","created":{},"model":{model},"data":[{data}],"usage":{usage},"completion_tokens":0,"prompt_tokens_details":null}}}}"#,
                state.created
            ),
        },
    )
}

/// The inputs of a body as bytes to hash.
fn inputs(body: &Value) -> Option<Vec<String>> {
    if let Some(messages) = body.get("messages").and_then(Value::as_array) {
        return Some(vec![rendered(None, messages)]);
    }
    let input = body.get("input").or_else(|| body.get("data"))?;
    Some(match input {
        Value::Array(items) if !items.iter().all(Value::is_number) => items.iter().map(text).collect(),
        one => vec![text(one)],
    })
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Object(object) => object.get("text").map_or_else(|| value.to_string(), text),
        other => other.to_string(),
    }
}

fn tokens(text: &str) -> usize {
    (text.len() / BYTES_PER_TOKEN).max(1)
}

/// A number from 0 to 1 with four digits.
fn number(text: &str, seed: u64) -> f64 {
    (hash(text.as_bytes(), seed) % 10_000) as f64 / 10_000.0
}

fn items(kind: Pooling, body: &Value, inputs: &[String]) -> (String, usize) {
    let base64 = body.get("encoding_format").and_then(Value::as_str) == Some("base64");
    let items = inputs.iter().enumerate().map(|(index, input)| {
        let vector: Vec<f64> = (0..DIMENSIONS).map(|axis| number(input, axis as u64)).collect();
        let numbers = vector.iter().map(|value| format!("{value:?}")).collect::<Vec<_>>().join(",");
        match kind {
            Pooling::Embeddings if base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|&value| (value as f32).to_le_bytes()).collect();
                format!(r#"{{"index":{index},"object":"embedding","embedding":"{}"}}"#, encoded(&bytes))
            }
            Pooling::Embeddings => {
                format!(r#"{{"index":{index},"object":"embedding","embedding":[{numbers}]}}"#)
            }
            Pooling::Classify => {
                let first = vector[0];
                let probs = format!("{first:?},{:?}", 1.0 - first);
                let label = usize::from(first < 0.5);
                format!(r#"{{"index":{index},"label":"LABEL_{label}","probs":[{probs}],"num_classes":2}}"#)
            }
            _ => format!(r#"{{"index":{index},"object":"pooling","data":[[{numbers}]]}}"#),
        }
    });
    (items.collect::<Vec<_>>().join(","), inputs.iter().map(|input| tokens(input)).sum())
}

fn list(body: &Value, names: &[&str]) -> Option<Vec<String>> {
    let found = names.iter().find_map(|name| body.get(name))?;
    Some(match found {
        Value::Array(items) => items.iter().map(text).collect(),
        one => vec![text(one)],
    })
}

fn score(body: &Value) -> Option<(String, usize)> {
    let left = list(body, &["queries", "data_1", "text_1"])?;
    let right = list(body, &["documents", "items", "data_2", "text_2"])?;
    let items = right.iter().enumerate().map(|(index, right)| {
        let left = &left[index.min(left.len().saturating_sub(1))..].first().map_or("", String::as_str);
        let score = number(&format!("{left}\n{right}"), 0);
        format!(r#"{{"index":{index},"object":"score","score":{score:?}}}"#)
    });
    let count = left.iter().chain(&right).map(|text| tokens(text)).sum();
    Some((items.collect::<Vec<_>>().join(","), count))
}

fn rerank(body: &Value) -> Option<(String, usize)> {
    let query = text(body.get("query")?);
    let documents = list(body, &["documents"])?;
    let mut scored: Vec<_> =
        documents.iter().enumerate().map(|(at, text)| (number(&format!("{query}\n{text}"), 0), at)).collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    let top = body.get("top_n").and_then(Value::as_u64).filter(|&top| top > 0).unwrap_or(u64::MAX);
    scored.truncate(usize::try_from(top).unwrap_or(usize::MAX));
    let items = scored.iter().map(|&(score, at)| {
        let document = quoted(&documents[at]);
        format!(r#"{{"index":{at},"document":{{"text":{document},"multi_modal":null}},"relevance_score":{score:?}}}"#)
    });
    let count = documents.iter().map(|document| tokens(document) + tokens(&query)).sum();
    Some((items.collect::<Vec<_>>().join(","), count))
}

fn encoded(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let all =
            group.iter().enumerate().fold(0u32, |all, (at, &byte)| all | u32::from(byte) << (16 - 8 * at));
        for digit in 0..4 {
            match digit <= group.len() {
                true => text.push(char::from(ALPHABET[(all >> (18 - 6 * digit) & 63) as usize])),
                false => text.push('='),
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::encoded;

    #[test]
    fn base64_pads() {
        assert_eq!(encoded(b"Man"), "TWFu");
        assert_eq!(encoded(b"Ma"), "TWE=");
        assert_eq!(encoded(b"M"), "TQ==");
    }
}

//! What the client must not see of a decode worker's answer, and the count of cached tokens where the worker does not know
//! it: edits of a whole answer or of one record. Everything else stays as it came.

use std::sync::LazyLock;

use bytes::Bytes;
use forebay_openai::{Change, Members, Splices};
use memchr::memmem::Finder;

use crate::hand_over::{FIELD, number};

static INTERNAL: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"kv_transfer_params\""));
/// The start of `cached_tokens` and of `cache_read_input_tokens`.
static CACHED: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"cache"));

/// What has to be put right in one answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Correction {
    /// Tokens of the prompt that were cached, if the decode worker's own count is not to be believed.
    pub cached_tokens: Option<u64>,
}

impl Correction {
    /// A whole answer as the client gets it.
    #[must_use]
    pub fn of_answer(&self, answer: Bytes) -> Bytes {
        if self.has_nothing_in(&answer) {
            return answer;
        }
        self.edited(&answer).unwrap_or(answer)
    }

    /// Whole records of a stream as the client gets them.
    #[must_use]
    pub fn of_records(&self, records: Bytes) -> Bytes {
        if self.has_nothing_in(&records) {
            return records;
        }
        let mut out = Vec::with_capacity(records.len() + 8);
        for line in records.split_inclusive(|byte| *byte == b'\n') {
            let json =
                line.strip_prefix(b"data:").map(<[u8]>::trim_ascii).filter(|json| json.starts_with(b"{"));
            let edited = json.and_then(|json| Some((json, self.edited(&records.slice_ref(json))?)));
            match edited {
                Some((json, edited)) => {
                    let at = json.as_ptr() as usize - line.as_ptr() as usize;
                    out.extend_from_slice(&line[..at]);
                    out.extend_from_slice(&edited);
                    out.extend_from_slice(&line[at + json.len()..]);
                }
                None => out.extend_from_slice(line),
            }
        }
        out.into()
    }

    fn has_nothing_in(&self, bytes: &[u8]) -> bool {
        INTERNAL.find(bytes).is_none() && (self.cached_tokens.is_none() || CACHED.find(bytes).is_none())
    }

    /// `None` if it is no JSON object.
    fn edited(&self, json: &Bytes) -> Option<Bytes> {
        let mut splices = Splices::default();
        let mut inner = None;
        let mut usage = None;
        for member in Members::new(json).ok()? {
            let member = member.ok()?;
            match &json[member.key.raw] {
                b"response" => inner = Some(("response", member.value.start)),
                b"message" => inner = Some(("message", member.value.start)),
                b"usage" => usage = Some(member.value.start),
                _ => {}
            }
        }
        splices.change(json, &[], &[Change::Cut(FIELD)]).ok()?;
        // Events of the Responses API carry the whole object, and so does the first one of the Messages API.
        if let Some((name, at)) = inner.filter(|(_, at)| json[*at] == b'{') {
            splices.change(json, &[name], &[Change::Cut(FIELD)]).ok()?;
            for member in Members::nested(json, at).ok()? {
                let member = member.ok()?;
                if &json[member.key.raw] == b"usage" {
                    usage = Some(member.value.start);
                }
            }
        }
        if let Some(at) = usage.filter(|at| json[*at] == b'{') {
            self.usage(json, at, &mut splices);
        }
        Some(splices.apply(json))
    }

    fn usage(&self, json: &[u8], at: usize, splices: &mut Splices) {
        let Some(cached) = self.cached_tokens else { return };
        let details = [&b"prompt_tokens_details"[..], b"input_tokens_details"];
        let inside = |at| Members::nested(json, at).into_iter().flatten().flatten();
        let (mut read, mut rest) = (None, None);
        for member in inside(at) {
            match &json[member.key.raw] {
                b"cache_read_input_tokens" => read = Some(member.value),
                b"input_tokens" => rest = Some(member.value),
                name if details.contains(&name) && json[member.value.start] == b'{' => {
                    let counts = inside(member.value.start);
                    for count in counts.filter(|count| &json[count.key.raw.clone()] == b"cached_tokens") {
                        splices.replace(count.value, cached.to_string().into());
                    }
                }
                _ => {}
            }
        }
        // The Messages API counts the cached part of a prompt apart from the rest.
        let (Some(read), Some(rest)) = (read, rest) else { return };
        if let (Some(was), Some(others)) = (number(&json[read.clone()]), number(&json[rest.clone()])) {
            splices.replace(read, cached.to_string().into());
            splices.replace(rest, others.saturating_add(was).saturating_sub(cached).to_string().into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CORRECTION: Correction = Correction { cached_tokens: Some(96) };

    fn whole(answer: &'static str) -> String {
        String::from_utf8(CORRECTION.of_answer(Bytes::from(answer)).to_vec()).unwrap()
    }

    #[test]
    fn internal_fields_go_and_the_count_of_cached_tokens_is_put_right() {
        assert_eq!(
            whole(
                r#"{"id":"x","usage":{"prompt_tokens":100,"prompt_tokens_details":{"cached_tokens":99}},"kv_transfer_params":{"remote_host":"10.0.0.1"}}"#
            ),
            r#"{"id":"x","usage":{"prompt_tokens":100,"prompt_tokens_details":{"cached_tokens":96}}}"#
        );
        assert_eq!(
            whole(
                r#"{"kv_transfer_params":null,"usage":{"input_tokens_details":{"cached_tokens":5}},"n":1.50}"#
            ),
            r#"{"usage":{"input_tokens_details":{"cached_tokens":96}},"n":1.50}"#
        );
    }

    #[test]
    fn an_answer_with_nothing_to_put_right_is_the_same_bytes() {
        let answer = Bytes::from_static(br#"{"text":"kv_transfer_params","usage":{"prompt_tokens":3}}"#);
        assert_eq!(CORRECTION.of_answer(answer.clone()).as_ptr(), answer.as_ptr());
        let text = r#"{"text":"\"kv_transfer_params\":1,\"cached_tokens\":3","usage":{"cached_tokens":1}}"#;
        assert_eq!(whole(text), text);
        assert_eq!(whole(r#"no json "kv_transfer_params""#), r#"no json "kv_transfer_params""#);
    }

    #[test]
    fn only_the_record_that_has_it_is_touched() {
        let records = Bytes::from_static(
            b"data: {\"choices\":[{\"text\":\"a\"}]}\n\nevent: x\r\ndata:  {\"usage\":{\"prompt_tokens_details\":{\"cached_tokens\":9}},\"kv_transfer_params\":{\"a\":[1]}} \r\n\r\ndata: [DONE]\n\n",
        );
        assert_eq!(
            CORRECTION.of_records(records),
            &b"data: {\"choices\":[{\"text\":\"a\"}]}\n\nevent: x\r\ndata:  {\"usage\":{\"prompt_tokens_details\":{\"cached_tokens\":96}}} \r\n\r\ndata: [DONE]\n\n"[..]
        );
    }

    #[test]
    fn the_messages_api_counts_the_cached_part_apart() {
        assert_eq!(
            whole(
                r#"{"type":"message","usage":{"input_tokens":4,"output_tokens":2,"cache_creation_input_tokens":0,"cache_read_input_tokens":100}}"#
            ),
            r#"{"type":"message","usage":{"input_tokens":8,"output_tokens":2,"cache_creation_input_tokens":0,"cache_read_input_tokens":96}}"#
        );
        let records = Bytes::from_static(
            b"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"cache_read_input_tokens\":100,\"input_tokens\":4}}}\n\n",
        );
        assert_eq!(
            CORRECTION.of_records(records),
            &b"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"cache_read_input_tokens\":96,\"input_tokens\":8}}}\n\n"[..]
        );
        let untold = r#"{"usage":{"input_tokens":104,"cache_read_input_tokens":null}}"#;
        assert_eq!(whole(untold), untold);
    }

    #[test]
    fn events_of_the_responses_api_are_looked_into() {
        let records = Bytes::from_static(
            b"event: response.completed\ndata: {\"response\":{\"usage\":{\"input_tokens_details\":{\"cached_tokens\":9}},\"kv_transfer_params\":{}},\"type\":\"x\"}\n\n",
        );
        assert_eq!(
            CORRECTION.of_records(records),
            &b"event: response.completed\ndata: {\"response\":{\"usage\":{\"input_tokens_details\":{\"cached_tokens\":96}}},\"type\":\"x\"}\n\n"[..]
        );
    }
}

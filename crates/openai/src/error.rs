//! Error bodies in the shapes that clients of each API expect; must not decide which error it is.

use bytes::Bytes;

use crate::escape;

/// Whose shape an error body has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// `{"error":{"message","type","param","code"}}`, also what vLLM answers on every route that has no other.
    OpenAi,
    /// `{"type":"error","error":{"type","message"}}`
    Anthropic,
    /// The Responses API; its error bodies are OpenAI's, only its stream records differ.
    Responses,
}

/// A member that is added to the machine-readable part of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extra<'a> {
    /// Text.
    Text(&'a str, &'a str),
    /// A whole number.
    Number(&'a str, u64),
    /// True or false.
    Flag(&'a str, bool),
}

/// An error to be told to a client.
#[derive(Debug, Clone, Copy)]
pub struct ErrorBody<'a> {
    /// For people.
    pub message: &'a str,
    /// vLLM's name of the kind, e.g. `BadRequestError`; translated for Anthropic.
    pub kind: &'a str,
    /// The request member at fault.
    pub param: Option<&'a str>,
    /// HTTP status.
    pub code: u16,
    /// For programs: the name of the failure, added as `"forebay":{"failure":…}` beside `error`.
    pub failure: Option<&'a str>,
    /// Members beside the name of the failure; left out without one.
    pub extra: &'a [Extra<'a>],
}

/// What a stream of the Responses API has told before its last record, which goes on with it.
#[derive(Debug, Clone, Copy, Default)]
pub struct SoFar<'a> {
    /// Id of the response; empty if it is not known.
    pub id: &'a str,
    /// Records so far.
    pub records: u64,
}

impl<'a> ErrorBody<'a> {
    /// An error with vLLM's name for its status and nothing else.
    pub fn new(code: u16, message: &'a str) -> Self {
        Self { message, kind: kind_of_status(code), param: None, code, failure: None, extra: &[] }
    }

    /// The JSON body.
    pub fn to_json(&self, dialect: Dialect) -> Bytes {
        let mut out = Vec::with_capacity(self.message.len() + 160);
        match dialect {
            Dialect::OpenAi | Dialect::Responses => self.write_openai(&mut out),
            Dialect::Anthropic => self.write_anthropic(&mut out),
        }
        self.write_failure(&mut out);
        out.push(b'}');
        Bytes::from(out)
    }

    /// A whole event-stream record that tells a client whose answer has begun.
    pub fn to_record(&self, dialect: Dialect, so_far: SoFar<'_>) -> Bytes {
        let mut out = match dialect {
            Dialect::OpenAi => b"data: ".to_vec(),
            Dialect::Anthropic => b"event: error\ndata: ".to_vec(),
            Dialect::Responses => b"event: response.failed\ndata: ".to_vec(),
        };
        if dialect == Dialect::Responses {
            self.write_response_event(&mut out, so_far);
            self.write_failure(&mut out);
            out.push(b'}');
        } else {
            out.extend_from_slice(&self.to_json(dialect));
        }
        out.extend_from_slice(b"\n\n");
        Bytes::from(out)
    }

    fn write_openai(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"error\":{\"message\":");
        escape::write_string(self.message, out);
        out.extend_from_slice(b",\"type\":");
        escape::write_string(self.kind, out);
        self.write_param(out);
        out.extend_from_slice(format!(",\"code\":{}}}", self.code).as_bytes());
    }

    fn write_anthropic(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"type\":\"error\",\"error\":{\"type\":");
        escape::write_string(anthropic_kind(self.code), out);
        out.extend_from_slice(b",\"message\":");
        escape::write_string(self.message, out);
        out.push(b'}');
    }

    /// The `response.failed` event of the Responses API, which ends a stream as `response.completed` does.
    fn write_response_event(&self, out: &mut Vec<u8>, SoFar { id, records }: SoFar<'_>) {
        let head =
            format!("{{\"type\":\"response.failed\",\"sequence_number\":{records},\"response\":{{\"id\":");
        out.extend_from_slice(head.as_bytes());
        escape::write_string(id, out);
        out.extend_from_slice(b",\"object\":\"response\",\"status\":\"failed\",\"error\":{\"code\":\"server_error\",\"message\":");
        escape::write_string(self.message, out);
        out.extend_from_slice(b"},\"incomplete_details\":null,\"output\":[]}");
    }

    fn write_param(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b",\"param\":");
        match self.param {
            Some(param) => escape::write_string(param, out),
            None => out.extend_from_slice(b"null"),
        }
    }

    fn write_failure(&self, out: &mut Vec<u8>) {
        let Some(failure) = self.failure else { return };
        out.extend_from_slice(b",\"forebay\":{\"failure\":");
        escape::write_string(failure, out);
        for extra in self.extra {
            let (Extra::Text(name, _) | Extra::Number(name, _) | Extra::Flag(name, _)) = extra;
            out.push(b',');
            escape::write_string(name, out);
            out.push(b':');
            match extra {
                Extra::Text(_, text) => escape::write_string(text, out),
                Extra::Number(_, number) => out.extend_from_slice(number.to_string().as_bytes()),
                Extra::Flag(_, flag) => out.extend_from_slice(flag.to_string().as_bytes()),
            }
        }
        out.push(b'}');
    }
}

/// vLLM's name for the kind of error a status stands for.
pub const fn kind_of_status(code: u16) -> &'static str {
    match code {
        401 => "AuthenticationError",
        403 => "PermissionDeniedError",
        404 => "NotFoundError",
        422 => "UnprocessableEntityError",
        429 => "RateLimitError",
        501 => "NotImplementedError",
        503 => "ServiceUnavailableError",
        500.. => "InternalServerError",
        _ => "BadRequestError",
    }
}

const fn anthropic_kind(code: u16) -> &'static str {
    match code {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 | 529 => "overloaded_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{RecordKind, SseScanner};

    #[test]
    fn openai_errors_are_byte_for_byte_what_vllm_writes() {
        let error = ErrorBody::new(400, "no \"messages\"");
        assert_eq!(
            error.to_json(Dialect::OpenAi),
            r#"{"error":{"message":"no \"messages\"","type":"BadRequestError","param":null,"code":400}}"#
        );
        let error = ErrorBody { param: Some("model"), ..ErrorBody::new(404, "x") };
        assert_eq!(
            error.to_json(Dialect::Responses),
            r#"{"error":{"message":"x","type":"NotFoundError","param":"model","code":404}}"#
        );
    }

    #[test]
    fn anthropic_errors_have_anthropics_names() {
        assert_eq!(
            ErrorBody::new(400, "x").to_json(Dialect::Anthropic),
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"x"}}"#
        );
        assert!(
            ErrorBody::new(503, "x")
                .to_json(Dialect::Anthropic)
                .ends_with(br#"{"type":"overloaded_error","message":"x"}}"#)
        );
    }

    #[test]
    fn a_failure_has_a_name_for_programs_beside_the_error() {
        let extra =
            [Extra::Text("pool", "a\"b"), Extra::Number("retry_after_s", 3), Extra::Flag("sent", false)];
        let error = ErrorBody {
            failure: Some("router_pool_exhausted"),
            extra: &extra,
            ..ErrorBody::new(503, "full")
        };
        for dialect in [Dialect::OpenAi, Dialect::Anthropic, Dialect::Responses] {
            let body: Value = serde_json::from_slice(&error.to_json(dialect)).unwrap();
            assert_eq!(
                body["forebay"],
                json!({"failure": "router_pool_exhausted", "pool": "a\"b", "retry_after_s": 3, "sent": false})
            );
            assert_eq!(body["error"]["message"], "full");
        }
    }

    #[test]
    fn an_error_record_is_seen_as_one_by_our_own_scanner() {
        let error = ErrorBody { failure: Some("worker_died"), ..ErrorBody::new(502, "gone\nand\ngone") };
        for dialect in [Dialect::OpenAi, Dialect::Anthropic, Dialect::Responses] {
            let record = error.to_record(dialect, SoFar { id: "resp_1", records: 3 });
            let mut kinds = Vec::new();
            let whole = SseScanner::default().feed(&record, |record| kinds.push(record.kind));
            assert_eq!((kinds, whole), (vec![RecordKind::Error], record.len()));
            let data = record.windows(6).position(|window| window == b"data: ").unwrap() + 6;
            assert!(serde_json::from_slice::<Value>(&record[data..]).is_ok());
        }
    }
}

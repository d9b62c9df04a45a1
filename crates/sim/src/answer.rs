//! What a worker answers, before it becomes bytes on a socket: the data type, and the bytes of heads and errors.

use crate::engine::Admission;

/// An answer to one request.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) content_type: Option<&'static str>,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) content: Content,
    /// What the engine said about its prompts; empty where no engine was asked.
    pub(crate) admissions: Vec<Admission>,
}

/// The body of an answer.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    Whole(Vec<u8>),
    Stream(Vec<Record>),
}

/// One record of a stream, ready `token` tokens into the output (the first token is 1).
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) token: u64,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) const JSON: &str = "application/json";
pub(crate) const SSE: &str = "text/event-stream; charset=utf-8";
/// Errors whose cause is hidden from clients carry this text.
pub(crate) const SANITISED: &str = "Internal server error";

impl Answer {
    pub(crate) fn json(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            content_type: Some(JSON),
            headers: Vec::new(),
            content: Content::Whole(body.into()),
            admissions: Vec::new(),
        }
    }

    pub(crate) fn text(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { content_type: Some("text/plain; charset=utf-8"), ..Self::json(status, body) }
    }

    pub(crate) fn empty(status: u16) -> Self {
        Self { content_type: None, ..Self::json(status, "") }
    }

    pub(crate) fn stream(records: Vec<Record>) -> Self {
        Self { content_type: Some(SSE), content: Content::Stream(records), ..Self::empty(200) }
    }

    /// An error in the object shape of the OpenAI API.
    pub(crate) fn error(status: u16, kind: &str, message: &str, param: Option<&str>) -> Self {
        Self::json(status, error_body(status, kind, message, param))
    }

    pub(crate) fn bad_request(message: &str, param: Option<&str>) -> Self {
        Self::error(400, "BadRequestError", message, param)
    }

    /// A body that does not fit the route's schema.
    pub(crate) fn invalid(kind: &str, loc: &str, msg: &str) -> Self {
        let message = format!("1 validation error:\n  {{'type': '{kind}', 'loc': '{loc}', 'msg': '{msg}'}}");
        Self::error(400, "Bad Request", &message, Some(loc))
    }

    pub(crate) fn unavailable(message: &str) -> Self {
        Self::error(503, "ServiceUnavailableError", message, None)
    }
}

/// Text of an OpenAI error object.
pub(crate) fn error_body(status: u16, kind: &str, message: &str, param: Option<&str>) -> String {
    let param = param.map_or("null".to_owned(), quoted);
    format!(
        r#"{{"error":{{"message":{},"type":{},"param":{param},"code":{status}}}}}"#,
        quoted(message),
        quoted(kind)
    )
}

/// A JSON string with its quotes.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// How the length of an answer's body is told in its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    Known(usize),
    Chunked,
}

/// What of an answer's head does not depend on the request.
#[derive(Clone, Debug)]
pub(crate) struct HeadStyle {
    /// Value of the header that names the worker.
    pub(crate) worker: String,
    /// Value of the `date` header.
    pub(crate) date: String,
}

impl HeadStyle {
    /// The head of an answer, blank line included.
    pub(crate) fn head(&self, answer: &Answer, length: Length) -> Vec<u8> {
        use std::fmt::Write;
        let mut head = format!(
            "HTTP/1.1 {} {}\r\ndate: {}\r\nserver: uvicorn\r\n",
            answer.status,
            reason(answer.status),
            self.date
        );
        // Writing to a String cannot fail.
        let _ = match length {
            Length::Known(length) => write!(head, "content-length: {length}\r\n"),
            Length::Chunked => write!(head, "transfer-encoding: chunked\r\n"),
        };
        if let Some(content_type) = answer.content_type {
            let _ = write!(head, "content-type: {content_type}\r\n");
        }
        for (name, value) in &answer.headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        let _ = write!(head, "x-sim-worker: {}\r\n\r\n", self.worker);
        head.into_bytes()
    }
}

/// The reason phrase of a status.
pub(crate) fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        102 => "Processing",
        103 => "Early Hints",
        200 => "OK",
        202 => "Accepted",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        413 => "Content Too Large",
        418 => "I'm a Teapot",
        422 => "Unprocessable Content",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Unknown",
    }
}

//! The head of an answer, and how its body is framed. It neither reads nor writes a socket.

use std::time::SystemTime;

use http::header::{self, HeaderName, HeaderValue};
use http::response::Parts;
use http::{Method, StatusCode};

use super::head::{Head, HeadError};

/// What of a request decides about the form of its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Form {
    is_head: bool,
    is_old: bool,
    /// Whether another request may follow.
    pub(super) keep_alive: bool,
}

/// How a body's end is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// There is no body; one that is only left out would be so long, if that is known.
    None(Option<u64>),
    /// By its length; this much is still to be sent.
    Length(u64),
    Chunked,
    /// By the end of the connection.
    UntilClose,
    /// The same, and the connection speaks another protocol until then.
    Switched,
}

impl Form {
    pub(super) fn of(head: &Head) -> Self {
        Self {
            is_head: head.parts.method == Method::HEAD,
            is_old: head.parts.version == http::Version::HTTP_10,
            keep_alive: head.keep_alive,
        }
    }

    /// For a body that is so long, if that is known.
    pub(super) fn framing(&mut self, status: StatusCode, exact: Option<u64>) -> Framing {
        match exact {
            _ if status == StatusCode::SWITCHING_PROTOCOLS => {
                self.keep_alive = false;
                Framing::Switched
            }
            _ if matches!(status.as_u16(), 204 | 304) => Framing::None(None),
            // Of an answer without a body nobody knows how long it would be.
            _ if self.is_head => Framing::None(exact.filter(|length| *length > 0)),
            Some(length) => Framing::Length(length),
            None if self.is_old => {
                self.keep_alive = false;
                Framing::UntilClose
            }
            None => Framing::Chunked,
        }
    }

    /// Writes the head of an answer.
    pub(super) fn write(&self, parts: &Parts, framing: Framing, out: &mut Vec<u8>) {
        if parts.status == StatusCode::OK {
            out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
        } else {
            status_line(parts.status, out);
        }
        let (mut has_date, mut length) = (false, None);
        for (name, value) in &parts.headers {
            match *name {
                header::CONNECTION | header::TRANSFER_ENCODING => continue,
                header::CONTENT_LENGTH => {
                    length = Some(value);
                    continue;
                }
                header::DATE => has_date = true,
                _ => {}
            }
            line(name, value, out);
        }
        self.end(framing, length.filter(|_| parts.status != StatusCode::NO_CONTENT), out);
        if !has_date {
            let now = httpdate::fmt_http_date(SystemTime::now());
            [b"date: ", now.as_bytes(), b"\r\n"].into_iter().for_each(|part| out.extend_from_slice(part));
        }
        out.extend_from_slice(b"\r\n");
    }

    /// What concerns the connection: where the body ends, and whether another request may follow.
    fn end(&self, framing: Framing, told: Option<&HeaderValue>, out: &mut Vec<u8>) {
        match (framing, told) {
            (Framing::None(_), Some(length)) => line(&header::CONTENT_LENGTH, length, out),
            (Framing::None(Some(length)) | Framing::Length(length), _) => content_length(length, out),
            (Framing::Chunked, _) => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
            (Framing::Switched, _) => {
                out.extend_from_slice(b"connection: Upgrade\r\n");
                return;
            }
            (Framing::None(None) | Framing::UntilClose, _) => {}
        }
        match (self.keep_alive, self.is_old) {
            (false, _) => out.extend_from_slice(b"connection: close\r\n"),
            (true, true) => out.extend_from_slice(b"connection: keep-alive\r\n"),
            (true, false) => {}
        }
    }
}

fn status_line(status: StatusCode, out: &mut Vec<u8>) {
    let reason = status.canonical_reason().unwrap_or_default();
    for part in ["HTTP/1.1 ", status.as_str(), " ", reason, "\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
}

fn content_length(length: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"content-length: ");
    out.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn line(name: &HeaderName, value: &HeaderValue, out: &mut Vec<u8>) {
    let (name, value) = (name.as_str().as_bytes(), value.as_bytes());
    out.reserve(name.len() + value.len() + 4);
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// The answer to what is no request that could be answered. The connection ends with it.
pub(super) fn refusal(status: StatusCode, message: &str) -> Vec<u8> {
    let kind = if status == StatusCode::REQUEST_TIMEOUT { "RequestTimeout" } else { "BadRequestError" };
    let code = status.as_u16();
    let body = format!(r#"{{"error":{{"message":"{message}","type":"{kind}","param":null,"code":{code}}}}}"#);
    let mut out = Vec::with_capacity(512);
    status_line(status, &mut out);
    content_length(body.len() as u64, &mut out);
    out.extend_from_slice(b"content-type: application/json\r\nconnection: close\r\n\r\n");
    out.extend_from_slice(body.as_bytes());
    out
}

/// With what a head is refused.
pub(super) fn status_of(error: HeadError) -> StatusCode {
    match error {
        HeadError::Malformed | HeadError::Length | HeadError::Coding => StatusCode::BAD_REQUEST,
        HeadError::TooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        HeadError::TargetTooLong => StatusCode::URI_TOO_LONG,
    }
}

/// Hexadecimal digits and a line's end.
pub(super) fn chunk_size(size: usize, out: &mut Vec<u8>) {
    let digits = (usize::BITS - size.leading_zeros()).div_ceil(4).max(1);
    for place in (0..digits).rev() {
        out.push(b"0123456789abcdef"[size >> (4 * place) & 15]);
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::super::head::parse;
    use super::*;

    fn written(
        request: &str,
        status: u16,
        headers: &[(&'static str, &'static str)],
        exact: Option<u64>,
    ) -> String {
        let head = parse(request.as_bytes()).unwrap().unwrap();
        let mut response = http::Response::builder().status(status).header("date", "d");
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        let (parts, ()) = response.body(()).unwrap().into_parts();
        let mut form = Form::of(&head);
        let framing = form.framing(parts.status, exact);
        let mut out = Vec::new();
        form.write(&parts, framing, &mut out);
        String::from_utf8(out).unwrap()
    }

    const GET: &str = "GET / HTTP/1.1\r\n\r\n";
    const HEAD: &str = "HEAD / HTTP/1.1\r\n\r\n";

    #[test]
    fn each_body_is_framed_as_its_client_can_read_it() {
        let of = |request: &str, status, exact| written(request, status, &[], exact);
        assert_eq!(of(GET, 200, Some(5)), "HTTP/1.1 200 OK\r\ndate: d\r\ncontent-length: 5\r\n\r\n");
        assert_eq!(of(GET, 200, None), "HTTP/1.1 200 OK\r\ndate: d\r\ntransfer-encoding: chunked\r\n\r\n");
        assert_eq!(of(GET, 204, Some(0)), "HTTP/1.1 204 No Content\r\ndate: d\r\n\r\n");
        assert_eq!(of(HEAD, 200, Some(0)), "HTTP/1.1 200 OK\r\ndate: d\r\n\r\n");
        assert_eq!(of(HEAD, 200, Some(7)), "HTTP/1.1 200 OK\r\ndate: d\r\ncontent-length: 7\r\n\r\n");
        let old = "GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n";
        assert_eq!(of(old, 200, None), "HTTP/1.1 200 OK\r\ndate: d\r\nconnection: close\r\n\r\n");
        assert!(of(old, 200, Some(0)).ends_with("content-length: 0\r\nconnection: keep-alive\r\n\r\n"));
    }

    #[test]
    fn what_the_other_connection_said_of_itself_is_not_repeated() {
        let headers =
            [("content-length", "9"), ("connection", "x"), ("transfer-encoding", "chunked"), ("a", "b")];
        let head = written(GET, 200, &headers, Some(5));
        assert_eq!(head, "HTTP/1.1 200 OK\r\ndate: d\r\na: b\r\ncontent-length: 5\r\n\r\n");
        // To HEAD the length is what a GET would have got.
        assert!(written(HEAD, 200, &headers, Some(0)).contains("\r\ncontent-length: 9\r\n"));
    }

    #[test]
    fn an_answer_without_a_date_gets_one() {
        let head = parse(GET.as_bytes()).unwrap().unwrap();
        let (parts, ()) = http::Response::new(()).into_parts();
        let mut out = Vec::new();
        Form::of(&head).write(&parts, Framing::Length(0), &mut out);
        assert!(String::from_utf8(out).unwrap().contains("\r\ndate: "));
    }

    #[test]
    fn sizes_of_chunks_are_written_without_leading_zeros() {
        for size in [0, 1, 9, 10, 15, 16, 255, 256, 4096, 65_535, 1 << 20] {
            let mut out = Vec::new();
            chunk_size(size, &mut out);
            assert_eq!(out, format!("{size:x}\r\n").as_bytes());
        }
    }
}

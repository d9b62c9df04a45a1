//! The head of a response, from the bytes of one or more reads.

use bytes::Bytes;
use http::header::{self, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode};

use super::framing::Decoder;

/// Largest head that is read before giving up on the worker, in bytes.
pub const HEAD_LIMIT: usize = 256 * 1024;

/// The connection speaks another protocol from here on.
const SWITCHED: StatusCode = StatusCode::SWITCHING_PROTOCOLS;

/// What decides how the answer to a request is read.
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    /// The request's method.
    pub method: &'a Method,
    /// Whether it asked for another protocol.
    pub switches: bool,
}

/// Headers that are read at the first try, and at the second.
const FEW: usize = 48;
const MANY: usize = 256;

/// A response's head without what belonged to the connection only.
#[derive(Debug)]
pub struct Head {
    /// Status code.
    pub status: StatusCode,
    /// Headers for the client.
    pub headers: HeaderMap,
    /// How the body is read.
    pub decoder: Decoder,
    /// Whether the connection may carry another exchange after the body.
    pub keep_alive: bool,
    /// Bytes of the head on the wire.
    pub length: usize,
    /// The body, if its length was told and all of it followed the head.
    pub whole: Option<Bytes>,
}

/// What the worker sent is not the head of an HTTP response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// Not HTTP/1.
    #[error("not an HTTP/1 response")]
    Malformed,
    /// More than 256 headers or 256 KiB.
    #[error("response head too large")]
    TooLarge,
    /// Several lengths that differ, or one that is no number.
    #[error("contradictory content-length")]
    Length,
    /// A transfer coding other than chunked, or a switch of protocols nobody asked for.
    #[error("unsupported transfer coding or upgrade")]
    Unsupported,
}

/// Reads the head at the start of `wire`; `None` if it is not complete. Interim responses (1xx) are skipped.
pub fn parse(wire: &[u8], method: &Method) -> Result<Option<Head>, HeadError> {
    parse_for(wire, Expected { method, switches: false })
}

/// The same, where the worker may have been asked for another protocol.
pub fn parse_for(wire: &[u8], expected: Expected<'_>) -> Result<Option<Head>, HeadError> {
    let mut skipped = 0;
    loop {
        match parse_one::<FEW>(&wire[skipped..], expected)? {
            Some(head) if head.status.is_informational() && head.status != SWITCHED => {
                skipped += head.length;
            }
            Some(mut head) => {
                head.length += skipped;
                return Ok(Some(head));
            }
            // Interim responses count: nobody would stop a worker that sends nothing else.
            None if wire.len() > HEAD_LIMIT => return Err(HeadError::TooLarge),
            None => return Ok(None),
        }
    }
}

fn parse_one<const N: usize>(wire: &[u8], expected: Expected<'_>) -> Result<Option<Head>, HeadError> {
    let mut fields = [httparse::EMPTY_HEADER; N];
    let mut response = httparse::Response::new(&mut fields);
    let length = match response.parse(wire) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) if N < MANY => return parse_one::<MANY>(wire, expected),
        Err(httparse::Error::TooManyHeaders) => return Err(HeadError::TooLarge),
        Err(_) => return Err(HeadError::Malformed),
    };
    let status =
        response.code.and_then(|code| StatusCode::from_u16(code).ok()).ok_or(HeadError::Malformed)?;
    let has_switched = status == SWITCHED;
    if has_switched && !expected.switches {
        return Err(HeadError::Unsupported);
    }
    // One copy, shared by all values, and the body if that is there.
    let end = announced_end(response.headers, length).filter(|end| *end <= wire.len());
    let bytes = Bytes::copy_from_slice(&wire[..end.unwrap_or(length)]);
    let mut framing = Framing { keep_alive: response.version == Some(1), ..Framing::default() };
    let mut headers = HeaderMap::with_capacity(response.headers.len() + 1);
    for field in response.headers.iter() {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| HeadError::Malformed)?;
        // The switched connection is the client's as well.
        if framing.keeps(&name, field.value)? || (has_switched && name == header::UPGRADE) {
            let value = bytes.slice_ref(rebase(&bytes, wire, field.value));
            let value = HeaderValue::from_maybe_shared(value).map_err(|_| HeadError::Malformed)?;
            headers.append(name, value);
        }
    }
    let named = if has_switched { Vec::new() } else { std::mem::take(&mut framing.named) };
    for name in named {
        if let Ok(name) = HeaderName::from_bytes(name) {
            headers.remove(name);
        }
    }
    let decoder =
        if has_switched { Decoder::UntilClose } else { framing.decoder(status, expected.method)? };
    let keep_alive = framing.keep_alive
        && decoder != Decoder::UntilClose
        && !(framing.chunked && framing.length.is_some());
    // Where there is a body to read, that says how long it is.
    if let (Some(length), false, true) = (framing.length, framing.chunked, decoder.is_done()) {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    let whole = end.filter(|_| matches!(decoder, Decoder::Length(_))).map(|end| bytes.slice(length..end));
    Ok(Some(Head { status, headers, decoder, keep_alive, length, whole }))
}

/// Where the body ends that the first of these headers to tell a length announces behind a head of `length` bytes.
/// Those that tell another length are refused later.
fn announced_end(headers: &[httparse::Header<'_>], length: usize) -> Option<usize> {
    let is_length = |name: &str| name.eq_ignore_ascii_case(CONTENT_LENGTH.as_str());
    let told = headers.iter().find(|field| is_length(field.name))?;
    length.checked_add(std::str::from_utf8(told.value).ok()?.trim().parse().ok()?)
}

/// The part of `copy` that stands where `part` stands in `wire`.
fn rebase<'a>(copy: &'a [u8], wire: &[u8], part: &[u8]) -> &'a [u8] {
    let from = (part.as_ptr() as usize).wrapping_sub(wire.as_ptr() as usize);
    copy.get(from..from.saturating_add(part.len())).unwrap_or_default()
}

/// What the headers say about the connection and the length of the body.
#[derive(Default)]
struct Framing<'a> {
    length: Option<u64>,
    chunked: bool,
    keep_alive: bool,
    /// Further headers of this hop, as `Connection` names them.
    named: Vec<&'a [u8]>,
}

impl<'a> Framing<'a> {
    /// Takes note of a header; false if it belongs to this connection only, or is written anew.
    fn keeps(&mut self, name: &HeaderName, value: &'a [u8]) -> Result<bool, HeadError> {
        match *name {
            header::CONTENT_LENGTH => {
                let text = std::str::from_utf8(value).map_err(|_| HeadError::Length)?.trim();
                let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
                let length = text.parse().ok().filter(|_| digits).ok_or(HeadError::Length)?;
                if self.length.is_some_and(|known| known != length) {
                    return Err(HeadError::Length);
                }
                self.length = Some(length);
            }
            header::TRANSFER_ENCODING => {
                if self.chunked || !value.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                    return Err(HeadError::Unsupported);
                }
                self.chunked = true;
            }
            header::CONNECTION => {
                for token in tokens(value) {
                    if token.eq_ignore_ascii_case(b"close") {
                        self.keep_alive = false;
                    } else if token.eq_ignore_ascii_case(b"keep-alive") {
                        self.keep_alive = true;
                    } else {
                        self.named.push(token);
                    }
                }
            }
            header::UPGRADE | header::TRAILER => {}
            _ => return Ok(!matches!(name.as_str(), "keep-alive" | "proxy-connection")),
        }
        Ok(false)
    }

    fn decoder(&self, status: StatusCode, method: &Method) -> Result<Decoder, HeadError> {
        let bodiless =
            status.is_informational() || matches!(status.as_u16(), 204 | 304) || method == Method::HEAD;
        Ok(match (bodiless, self.chunked, self.length) {
            (true, ..) => Decoder::Done,
            (_, true, _) => Decoder::chunked(),
            (_, _, Some(length)) => Decoder::length(length),
            (_, _, None) => Decoder::UntilClose,
        })
    }
}

/// The elements of a comma list.
pub fn tokens(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|b| *b == b',').map(<[u8]>::trim_ascii).filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn get(wire: &str) -> Result<Option<Head>, HeadError> {
        parse(wire.as_bytes(), &Method::GET)
    }

    fn framed(headers: &str) -> (Decoder, bool) {
        let head = get(&format!("HTTP/1.1 200 OK\r\n{headers}\r\n")).unwrap().unwrap();
        (head.decoder, head.keep_alive)
    }

    #[test]
    fn the_body_ends_as_the_head_says() {
        assert_eq!(framed("content-length: 5\r\n"), (Decoder::Length(5), true));
        assert_eq!(framed("Content-Length: 5\r\ncontent-length: 5\r\n"), (Decoder::Length(5), true));
        assert_eq!(framed("transfer-encoding: Chunked\r\n"), (Decoder::chunked(), true));
        assert_eq!(
            framed("transfer-encoding: chunked\r\nconnection: close\r\n"),
            (Decoder::chunked(), false)
        );
        assert_eq!(framed(""), (Decoder::UntilClose, false));
    }

    #[test]
    fn a_body_that_came_whole_comes_with_its_head() {
        let whole = |wire: &str| get(wire).unwrap().unwrap().whole;
        let wire = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabcd";
        assert_eq!(whole(wire).unwrap(), "abc");
        assert!(whole(&wire[..wire.len() - 2]).is_none());
        assert!(
            whole("HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\nabcd").is_none()
        );
        let head = parse(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc", &Method::HEAD).unwrap().unwrap();
        assert!(head.whole.is_none());
    }

    #[test]
    fn length_and_chunks_together_are_read_as_chunks_and_end_the_connection() {
        let head = get("HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n")
            .unwrap()
            .unwrap();
        assert_eq!((head.decoder, head.keep_alive), (Decoder::chunked(), false));
        assert!(!head.headers.contains_key(CONTENT_LENGTH));
    }

    #[test]
    fn what_belongs_to_the_hop_stays_there_and_duplicates_pass() {
        let head = get(concat!(
            "HTTP/1.1 201 Created\r\nSet-Cookie: a\r\nset-cookie: b\r\nX-Hop: 1\r\nConnection: x-hop, keep-alive\r\n",
            "X-Other: 1\r\nConnection: x-other\r\n",
            "Keep-Alive: timeout=5\r\nX-Kept: \u{e9}\r\nContent-Length: 0\r\n\r\nrest"
        ));
        let head = head.unwrap().unwrap();
        let cookies: Vec<_> = head.headers.get_all("set-cookie").iter().collect();
        assert_eq!(cookies, ["a", "b"]);
        assert_eq!(
            head.headers.keys().map(|k| k.as_str()).collect::<Vec<_>>(),
            ["set-cookie", "x-kept", "content-length"]
        );
        assert!(head.decoder.is_done() && head.status == StatusCode::CREATED);
    }

    #[test]
    fn interim_responses_are_skipped_and_heads_without_body_have_none() {
        let wire = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nlink: x\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n";
        let head = get(wire).unwrap().unwrap();
        assert_eq!((head.status.as_u16(), head.length, head.decoder), (204, wire.len(), Decoder::Done));
        let head = parse(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", &Method::HEAD).unwrap().unwrap();
        assert_eq!((&head.headers[CONTENT_LENGTH], head.decoder), (&HeaderValue::from(9), Decoder::Done));
    }

    #[test]
    fn garbage_is_named() {
        assert_eq!(get("SSH-2.0-OpenSSH_9\r\n").unwrap_err(), HeadError::Malformed);
        assert_eq!(
            get("HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n").unwrap_err(),
            HeadError::Length
        );
        assert_eq!(get("HTTP/1.1 200 OK\r\ncontent-length: +1\r\n\r\n").unwrap_err(), HeadError::Length);
        assert_eq!(
            get("HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n").unwrap_err(),
            HeadError::Unsupported
        );
        assert_eq!(get("HTTP/1.1 101 Switch\r\n\r\n").unwrap_err(), HeadError::Unsupported);
        let flood = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(300));
        assert_eq!(get(&flood).unwrap_err(), HeadError::TooLarge);
        assert_eq!(
            get(&format!("HTTP/1.1 200 OK\r\na: {}", "b".repeat(HEAD_LIMIT))).unwrap_err(),
            HeadError::TooLarge
        );
    }

    #[test]
    fn interim_responses_without_end_are_given_up() {
        let interim = "HTTP/1.1 100 Continue\r\n\r\n";
        assert!(get(&interim.repeat(3)).unwrap().is_none());
        let endless = interim.repeat(HEAD_LIMIT / interim.len() + 1);
        assert_eq!(get(&endless).unwrap_err(), HeadError::TooLarge);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(wire in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = parse(&wire, &Method::GET);
        }

        #[test]
        fn an_incomplete_head_is_never_taken_for_a_whole_one(cut in 0_usize..90) {
            let wire = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
            let cut = cut.min(wire.len() - 1);
            prop_assert!(get(&wire[..cut]).unwrap().is_none());
        }
    }
}

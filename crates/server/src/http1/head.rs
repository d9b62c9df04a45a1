//! The head of a request, from bytes, and where the body behind it ends. What two readers could understand in two ways
//! is refused. It reads no socket.

use std::mem::MaybeUninit;

use bytes::Bytes;
use forebay_router::upstream::framing::Decoder;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Uri, Version};

/// Largest head, in bytes.
pub const HEAD_LIMIT: usize = 128 * 1024;

/// Most headers.
const HEADERS: usize = 100;

/// Longest target, in bytes: what [`Uri`] can hold.
const TARGET_LIMIT: usize = 65_534;

/// A request's head.
#[derive(Debug)]
pub struct Head {
    /// Method, target, version, and all headers as they came. Boxed, since it is handed on often.
    pub parts: Box<Parts>,
    /// How the body is read.
    pub body: Decoder,
    /// Whether the client may send another request on the connection.
    pub keep_alive: bool,
    /// Whether the client asks to go on with another protocol, right behind the head.
    pub switches: bool,
    /// Whether the client sends the body only when it is told to.
    pub awaits_continue: bool,
    /// Bytes of the head on the wire.
    pub length: usize,
    /// The body, if its length was told and all of it followed the head.
    pub whole: Option<Bytes>,
}

/// Why a head is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// No HTTP/1.
    #[error("this is not a valid HTTP/1.1 request")]
    Malformed,
    /// More than 100 headers or 128 KiB.
    #[error("the request's head is larger than 100 headers or 128 KiB")]
    TooLarge,
    /// More than 64 KiB.
    #[error("the request's target is too long")]
    TargetTooLong,
    /// Several lengths, one that is no number, or a length beside chunks.
    #[error("the length of the request's body is contradictory")]
    Length,
    /// A transfer coding other than chunked.
    #[error("the request's transfer coding is not supported")]
    Coding,
}

/// Reads the head at the start of `wire`; `None` if it is not complete.
pub fn parse(wire: &[u8]) -> Result<Option<Head>, HeadError> {
    let mut fields = [const { MaybeUninit::uninit() }; HEADERS];
    let mut request = httparse::Request::new(&mut []);
    let config = httparse::ParserConfig::default();
    let length = match config.parse_request_with_uninit_headers(&mut request, wire, &mut fields) {
        Ok(httparse::Status::Complete(length)) if length <= HEAD_LIMIT => length,
        Ok(httparse::Status::Partial) if wire.len() <= HEAD_LIMIT => return Ok(None),
        Ok(_) | Err(httparse::Error::TooManyHeaders) => return Err(HeadError::TooLarge),
        Err(_) => return Err(HeadError::Malformed),
    };
    let (Some(method), Some(target), Some(minor)) = (request.method, request.path, request.version) else {
        return Err(HeadError::Malformed);
    };
    if target.len() > TARGET_LIMIT {
        return Err(HeadError::TargetTooLong);
    }
    // One copy, shared by the target, all values, and the body if that is there.
    let end = announced_end(request.headers, length).filter(|end| *end <= wire.len());
    let copy = Bytes::copy_from_slice(&wire[..end.unwrap_or(length)]);
    let share = |part: &[u8]| copy.slice_ref(rebase(&copy, wire, part));
    let mut headers = HeaderMap::with_capacity(request.headers.len());
    let mut framing = Framing { keep_alive: minor == 1, ..Framing::default() };
    for field in request.headers.iter() {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| HeadError::Malformed)?;
        framing.note(&name, field.value)?;
        let value = HeaderValue::from_maybe_shared(share(field.value)).map_err(|_| HeadError::Malformed)?;
        headers.append(name, value);
    }
    let mut parts = Box::new(Request::new(()).into_parts().0);
    parts.method = Method::from_bytes(method.as_bytes()).map_err(|_| HeadError::Malformed)?;
    parts.uri = Uri::from_maybe_shared(share(target.as_bytes())).map_err(|_| HeadError::Malformed)?;
    parts.version = if minor == 1 { Version::HTTP_11 } else { Version::HTTP_10 };
    parts.headers = headers;
    let body = framing.body(minor)?;
    // Behind a body it would be open where the other protocol begins.
    let is_bare = body.is_done();
    let whole = end.filter(|_| matches!(body, Decoder::Length(_))).map(|end| copy.slice(length..end));
    Ok(Some(Head {
        parts,
        body,
        keep_alive: framing.keep_alive && !framing.closes,
        switches: framing.names_upgrade && framing.has_protocol && minor == 1 && is_bare,
        awaits_continue: framing.awaits_continue && minor == 1,
        length,
        whole,
    }))
}

/// Where the body ends that the first of these headers to tell a length announces behind a head of `length` bytes.
/// Those that tell another length are refused later.
fn announced_end(headers: &[httparse::Header<'_>], length: usize) -> Option<usize> {
    let is_length = |name: &str| name.eq_ignore_ascii_case(header::CONTENT_LENGTH.as_str());
    let told = headers.iter().find(|field| is_length(field.name))?;
    length.checked_add(usize::try_from(number(told.value)?).ok()?)
}

/// The part of `copy` that stands where `part` stands in `wire`.
fn rebase<'a>(copy: &'a [u8], wire: &[u8], part: &[u8]) -> &'a [u8] {
    let from = (part.as_ptr() as usize).wrapping_sub(wire.as_ptr() as usize);
    copy.get(from..from.saturating_add(part.len())).unwrap_or_default()
}

/// What the headers say about the connection and the length of the body.
#[derive(Default)]
struct Framing {
    length: Option<u64>,
    is_chunked: bool,
    keep_alive: bool,
    /// Said once, whatever is said beside it.
    closes: bool,
    awaits_continue: bool,
    /// What a request for another protocol has to say, in two places.
    names_upgrade: bool,
    has_protocol: bool,
}

impl Framing {
    fn note(&mut self, name: &HeaderName, value: &[u8]) -> Result<(), HeadError> {
        match *name {
            header::CONTENT_LENGTH => {
                let length = number(value).ok_or(HeadError::Length)?;
                if self.length.is_some_and(|known| known != length) {
                    return Err(HeadError::Length);
                }
                self.length = Some(length);
            }
            header::TRANSFER_ENCODING => {
                if self.is_chunked || !value.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                    return Err(HeadError::Coding);
                }
                self.is_chunked = true;
            }
            header::CONNECTION => {
                for token in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                    self.closes |= token.eq_ignore_ascii_case(b"close");
                    self.names_upgrade |= token.eq_ignore_ascii_case(b"upgrade");
                    self.keep_alive |= token.eq_ignore_ascii_case(b"keep-alive");
                }
            }
            header::UPGRADE => self.has_protocol = true,
            header::EXPECT => {
                self.awaits_continue = value.trim_ascii().eq_ignore_ascii_case(b"100-continue");
            }
            _ => {}
        }
        Ok(())
    }

    fn body(&self, minor: u8) -> Result<Decoder, HeadError> {
        match (self.is_chunked, self.length) {
            (false, length) => Ok(Decoder::length(length.unwrap_or(0))),
            (true, None) if minor == 1 => Ok(Decoder::strictly_chunked()),
            (true, None) => Err(HeadError::Coding),
            (true, Some(_)) => Err(HeadError::Length),
        }
    }
}

/// Digits only; no sign, no list.
fn number(value: &[u8]) -> Option<u64> {
    let digits = value.trim_ascii();
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(headers: &str) -> Result<Option<Head>, HeadError> {
        parse(format!("POST /v1/x?a=b HTTP/1.1\r\nhost: h\r\n{headers}\r\n").as_bytes())
    }

    #[test]
    fn a_head_is_read_whole_or_not_at_all() {
        let wire =
            b"POST /v1/x?a=b HTTP/1.1\r\nhost: h\r\nContent-Length: 3\r\nx-a: 1\r\nx-a: 2\r\n\r\nabcrest";
        let head = parse(wire).unwrap().unwrap();
        assert_eq!(&wire[head.length..], b"abcrest");
        assert_eq!((head.parts.method.as_str(), head.parts.uri.to_string().as_str()), ("POST", "/v1/x?a=b"));
        assert_eq!(head.parts.headers.get_all("x-a").iter().collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(
            (head.body, head.keep_alive, head.parts.version),
            (Decoder::Length(3), true, Version::HTTP_11)
        );
        assert_eq!(head.whole.unwrap(), "abc");
        assert!(parse(&wire[..head.length + 2]).unwrap().unwrap().whole.is_none());
        for end in 0..head.length {
            assert!(parse(&wire[..end]).unwrap().is_none(), "{end}");
        }
    }

    #[test]
    fn a_body_has_one_end_or_its_head_is_refused() {
        let body = |headers: &str| read(headers).map(|head| head.unwrap().body);
        assert_eq!(body(""), Ok(Decoder::Done));
        assert_eq!(body("content-length: 7\r\ncontent-length: 7\r\n"), Ok(Decoder::Length(7)));
        assert_eq!(body("Transfer-Encoding: Chunked\r\n"), Ok(Decoder::strictly_chunked()));
        for (headers, error) in [
            ("content-length: 7\r\ncontent-length: 8\r\n", HeadError::Length),
            ("content-length: +7\r\n", HeadError::Length),
            ("content-length: 7, 7\r\n", HeadError::Length),
            ("content-length:\r\n", HeadError::Length),
            ("content-length: 18446744073709551616\r\n", HeadError::Length),
            ("content-length: 7\r\ntransfer-encoding: chunked\r\n", HeadError::Length),
            ("transfer-encoding: gzip, chunked\r\n", HeadError::Coding),
            ("transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n", HeadError::Coding),
            ("transfer-encoding: identity\r\n", HeadError::Coding),
            ("content-length : 7\r\n", HeadError::Malformed),
            ("x: a\r\n b\r\n", HeadError::Malformed),
        ] {
            assert_eq!(body(headers), Err(error), "{headers}");
        }
        let old = b"POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n";
        assert_eq!(parse(old).unwrap_err(), HeadError::Coding);
    }

    #[test]
    fn close_wins_over_keep_alive() {
        let keeps = |version: &str, headers: &str| {
            parse(format!("GET / HTTP/{version}\r\n{headers}\r\n").as_bytes()).unwrap().unwrap().keep_alive
        };
        assert!(keeps("1.1", "") && !keeps("1.0", ""));
        assert!(keeps("1.0", "Connection: Keep-Alive\r\n"));
        assert!(!keeps("1.1", "connection: x, close\r\nconnection: keep-alive\r\n"));
    }

    #[test]
    fn heads_without_measure_are_refused() {
        assert_eq!(read(&"a: b\r\n".repeat(HEADERS)).unwrap_err(), HeadError::TooLarge);
        assert_eq!(parse(&[b'a'; HEAD_LIMIT + 1]).unwrap_err(), HeadError::TooLarge);
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(TARGET_LIMIT));
        assert_eq!(parse(long.as_bytes()).unwrap_err(), HeadError::TargetTooLong);
    }
}

//! A request that was read whole, as the answers see it.

use crate::http::{self, Method};
use crate::routes::Found;

/// One request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) target: &'a str,
    /// What the path is; `None` where the worker has nothing.
    pub(crate) found: Option<Found>,
    /// The raw head.
    pub(crate) head: &'a [u8],
    pub(crate) body: &'a [u8],
}

impl<'a> Request<'a> {
    pub(crate) fn path(&self) -> &'a str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// Value of a query parameter, not decoded.
    pub(crate) fn query(&self, name: &str) -> Option<&'a str> {
        let (_, query) = self.target.split_once('?')?;
        query
            .split('&')
            .find_map(|pair| pair.split_once('=').filter(|(key, _)| *key == name))
            .map(|(_, value)| value)
    }

    /// First value of a header, if it is text.
    pub(crate) fn header(&self, name: &str) -> Option<&'a str> {
        http::header(self.head, name).and_then(|value| std::str::from_utf8(value).ok())
    }
}

/// Whether a body asks for a stream, without parsing it: the first `"stream"` key decides.
pub(crate) fn asks_for_stream(body: &[u8]) -> bool {
    let mut rest = body;
    while let Some(at) = memchr::memmem::find(rest, b"\"stream\"") {
        rest = rest[at + 8..].trim_ascii_start();
        if let Some(value) = rest.strip_prefix(b":") {
            return value.trim_ascii_start().starts_with(b"true");
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_seen_without_parsing() {
        assert!(asks_for_stream(br#"{"a":"stream","stream" : true}"#));
        assert!(asks_for_stream(br#"{"a":["stream"],"stream":true}"#));
        assert!(!asks_for_stream(br#"{"stream":false}"#));
        assert!(!asks_for_stream(br#"{"stream_options":{"x":true}}"#));
    }
}

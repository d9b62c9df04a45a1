//! How a worker understands the raw JSON of a number, a boolean or a name; must be as lax as pydantic, so that nobody can
//! send a value that the worker takes and this router does not see.

use std::borrow::Cow;

use crate::escape;

/// The text of a string value.
pub(crate) fn string(raw: &[u8]) -> Option<Cow<'_, str>> {
    match raw {
        [b'"', inner @ .., b'"'] => Some(escape::unescape(inner)),
        _ => None,
    }
}

/// A key for sessions: the text of a string, or a number as it is written. Empty is absent.
pub(crate) fn session(raw: &[u8]) -> Option<Cow<'_, str>> {
    let text = match raw {
        [b'0'..=b'9' | b'-', ..] => String::from_utf8_lossy(raw),
        _ => string(raw)?,
    };
    (!text.is_empty()).then_some(text)
}

/// True if a worker would read `raw` as true.
#[inline]
pub(crate) fn truth(raw: &[u8]) -> bool {
    // Most members are not there.
    !raw.is_empty() && is_true(raw)
}

fn is_true(raw: &[u8]) -> bool {
    if raw == b"true" {
        return true;
    }
    if let Some(text) = string(raw) {
        let yes = ["true", "1", "yes", "on", "t", "y"];
        return yes.iter().any(|word| text.eq_ignore_ascii_case(word));
    }
    count(raw) == Some(1)
}

/// The whole number a worker would read from `raw`; too large ones saturate.
#[inline]
pub(crate) fn count(raw: &[u8]) -> Option<u64> {
    match raw {
        [b'0'..=b'9', ..] => number(&String::from_utf8_lossy(raw)),
        [b'"', ..] => number(&string(raw)?),
        _ => None,
    }
}

#[inline(never)]
fn number(text: &str) -> Option<u64> {
    if let Ok(count) = text.parse() {
        return Some(count);
    }
    let text = text.trim().replace('_', "");
    let number: f64 = text.parse().ok()?;
    (number >= 0.0 && number.fract() == 0.0).then_some(number as u64)
}

/// True if a member is there and not null.
pub(crate) fn given(raw: &[u8]) -> bool {
    !raw.is_empty() && raw != b"null"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_as_laxly_as_pydantic_does() {
        let cases: [(&[u8], Option<u64>); 12] = [
            (b"2", Some(2)),
            (b"2.0", Some(2)),
            (b"2e0", Some(2)),
            (b"\"2\"", Some(2)),
            (b"\" 1_000 \"", Some(1000)),
            (br#""\u0032""#, Some(2)),
            (b"2.5", None),
            (b"-2", None),
            (b"NaN", None),
            (b"null", None),
            (b"1e400", None),
            (b"99999999999999999999", Some(u64::MAX)),
        ];
        for (raw, wanted) in cases {
            assert_eq!(count(raw), wanted, "{}", String::from_utf8_lossy(raw));
        }
    }

    #[test]
    fn truth_is_read_as_laxly_as_pydantic_does() {
        for raw in [&b"true"[..], b"1", b"1.0", b"\"true\"", b"\"YES\"", b"\"on\"", b"\"1\""] {
            assert!(truth(raw), "{}", String::from_utf8_lossy(raw));
        }
        for raw in [&b"false"[..], b"0", b"null", b"\"off\"", b"2", b"", b"{}", b"[true]"] {
            assert!(!truth(raw), "{}", String::from_utf8_lossy(raw));
        }
    }

    #[test]
    fn session_keys_are_strings_or_numbers_as_written() {
        assert_eq!(session(b"\"a\\n\"").as_deref(), Some("a\n"));
        assert_eq!(session(b"12.50").as_deref(), Some("12.50"));
        assert_eq!(session(b"\"\""), None);
        assert_eq!(session(b"null"), None);
        assert_eq!(session(b"{}"), None);
    }
}

//! JSON string escapes in both directions; must not decide what a string means.

use std::borrow::Cow;

use memchr::memchr;

/// One step through the bytes between a string's quotes.
enum Piece<'a> {
    /// Bytes that stand for themselves.
    Plain(&'a [u8]),
    /// A two-byte escape such as `\n`: as written, and the byte it means.
    Short(&'a [u8], u8),
    /// One `\uXXXX`, or a pair of them that forms one character.
    Char(char),
    /// A `\uXXXX` that is half of a surrogate pair, or an escape that no parser accepts: as written.
    Odd(&'a [u8]),
}

struct Pieces<'a>(&'a [u8]);

/// The text of a JSON string, given the bytes between its quotes; borrowed if nothing is escaped.
///
/// Halves of surrogate pairs, which no UTF-8 text can hold, become U+FFFD.
pub fn unescape(raw: &[u8]) -> Cow<'_, str> {
    if memchr(b'\\', raw).is_none() {
        return String::from_utf8_lossy(raw);
    }
    let mut text = Vec::with_capacity(raw.len());
    for piece in Pieces(raw) {
        match piece {
            Piece::Plain(bytes) => text.extend_from_slice(bytes),
            Piece::Short(_, byte) => text.push(byte),
            Piece::Char(char) => text.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
            Piece::Odd(_) => text.extend_from_slice("\u{fffd}".as_bytes()),
        }
    }
    Cow::Owned(String::from_utf8_lossy(&text).into_owned())
}

/// As [`unescape`], into a buffer; empty if it does not fit or holds half of a surrogate pair.
pub(crate) fn unescape_short<'b>(raw: &[u8], buffer: &'b mut [u8]) -> &'b [u8] {
    let mut length = 0;
    let mut char_bytes = [0; 4];
    for piece in Pieces(raw) {
        let bytes: &[u8] = match piece {
            Piece::Plain(bytes) => bytes,
            Piece::Short(_, byte) => {
                char_bytes[0] = byte;
                &char_bytes[..1]
            }
            Piece::Char(char) => char.encode_utf8(&mut char_bytes).as_bytes(),
            Piece::Odd(_) => return &[],
        };
        let Some(room) = buffer.get_mut(length..length + bytes.len()) else {
            return &[];
        };
        room.copy_from_slice(bytes);
        length += bytes.len();
    }
    &buffer[..length]
}

/// Appends `raw` with every `\uXXXX` that has a plain form in that form, so that clients that escape all but ASCII and
/// clients that do not give the same bytes. Works on any JSON text, because backslashes only occur in strings.
pub(crate) fn write_canonical(raw: &[u8], out: &mut Vec<u8>) {
    out.reserve(raw.len());
    let mut pieces = Pieces(raw);
    loop {
        // Text in escapes is one escape after the other, mostly of three bytes in UTF-8: that case by itself.
        while let Some(code @ (0x800..0xd800 | 0xe000..0x1_0000)) = unit(pieces.0) {
            let byte = |shift: u32, mark: u32| (mark | (code >> shift & 0x3f)) as u8;
            out.extend_from_slice(&[(0xe0 | code >> 12) as u8, byte(6, 0x80), byte(0, 0x80)]);
            pieces.0 = &pieces.0[6..];
        }
        match pieces.next() {
            None => return,
            Some(Piece::Plain(bytes) | Piece::Short(bytes, _) | Piece::Odd(bytes)) => {
                out.extend_from_slice(bytes);
            }
            Some(Piece::Char(char)) => write_char(char, out),
        }
    }
}

/// Appends `text` as a JSON string with its quotes.
pub(crate) fn write_string(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    for char in text.chars() {
        write_char(char, out);
    }
    out.push(b'"');
}

fn write_char(char: char, out: &mut Vec<u8>) {
    match char {
        '"' => out.extend_from_slice(b"\\\""),
        '\\' => out.extend_from_slice(b"\\\\"),
        '\u{8}' => out.extend_from_slice(b"\\b"),
        '\t' => out.extend_from_slice(b"\\t"),
        '\n' => out.extend_from_slice(b"\\n"),
        '\u{c}' => out.extend_from_slice(b"\\f"),
        '\r' => out.extend_from_slice(b"\\r"),
        '\0'..='\u{1f}' => {
            let code = char as usize;
            out.extend_from_slice(&[b'\\', b'u', b'0', b'0', HEX_DIGITS[code >> 4], HEX_DIGITS[code & 15]]);
        }
        _ => out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
    }
}

impl<'a> Pieces<'a> {
    fn take(&mut self, length: usize) -> &'a [u8] {
        let (piece, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        piece
    }

    fn unicode(&mut self) -> Piece<'a> {
        let Some(first) = unit(self.0) else {
            return Piece::Odd(self.take(2));
        };
        if let Some(char) = char::from_u32(first) {
            self.take(6);
            return Piece::Char(char);
        }
        let second = self.0.get(6..).and_then(unit);
        match second {
            Some(low @ 0xdc00..=0xdfff) if first < 0xdc00 => {
                self.take(12);
                let code = 0x1_0000 + ((first - 0xd800) << 10) + (low - 0xdc00);
                Piece::Char(char::from_u32(code).unwrap_or('\u{fffd}'))
            }
            _ => Piece::Odd(self.take(6)),
        }
    }
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Piece<'a>;

    fn next(&mut self) -> Option<Piece<'a>> {
        let plain = match memchr(b'\\', self.0) {
            None if self.0.is_empty() => return None,
            found => found.unwrap_or(self.0.len()),
        };
        if plain > 0 {
            return Some(Piece::Plain(self.take(plain)));
        }
        let meant = match self.0.get(1) {
            Some(b'u') => return Some(self.unicode()),
            Some(b'b') => 8,
            Some(b't') => b'\t',
            Some(b'n') => b'\n',
            Some(b'f') => 12,
            Some(b'r') => b'\r',
            Some(byte @ (b'"' | b'\\' | b'/')) => *byte,
            _ => return Some(Piece::Odd(self.take(1))),
        };
        Some(Piece::Short(self.take(2), meant))
    }
}

/// The code unit of a `\uXXXX` at the start of `bytes`.
#[inline]
fn unit(bytes: &[u8]) -> Option<u32> {
    let Some([b'\\', b'u', a, b, c, d]) = bytes.first_chunk() else {
        return None;
    };
    let digit = |byte: &u8| i32::from(HEX_VALUES[usize::from(*byte)]);
    // One digit that is none makes the whole negative.
    let code = digit(a) << 12 | digit(b) << 8 | digit(c) << 4 | digit(d);
    u32::try_from(code).ok()
}

/// The value of each byte as a hexadecimal digit; -1 for those that are none.
const HEX_VALUES: [i8; 256] = {
    let mut values = [-1; 256];
    let mut value = 0_u8;
    while value < 16 {
        let digit = HEX_DIGITS[value as usize];
        values[digit as usize] = value.cast_signed();
        values[digit.to_ascii_uppercase() as usize] = value.cast_signed();
        value += 1;
    }
    values
};

const HEX_DIGITS: &[u8; 16] = b"0123456789abcdef";

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(raw: &str) -> String {
        let mut out = Vec::new();
        write_canonical(raw.as_bytes(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn escapes_mean_what_serde_json_says() {
        for raw in [r"plain", r"a\nb", r#"\"\\\/\b\f\n\r\t"#, r"\u00e9\u4e2d", r"\ud83d\ude00x", r"\u006bv"] {
            let wanted: String = serde_json::from_str(&format!("\"{raw}\"")).unwrap();
            assert_eq!(unescape(raw.as_bytes()), wanted, "{raw}");
        }
    }

    #[test]
    fn half_a_surrogate_pair_is_shown_as_replacement_and_never_as_a_name() {
        assert_eq!(unescape(br"a\ud83d"), "a\u{fffd}");
        assert_eq!(unescape(br"\ud83d\u0041"), "\u{fffd}A");
        assert_eq!(unescape_short(br"model\ud800", &mut [0; 64]), b"");
    }

    #[test]
    fn a_name_that_does_not_fit_is_no_name() {
        assert_eq!(unescape_short(br"\u006bv", &mut [0; 2]), b"kv");
        assert_eq!(unescape_short(br"\u006bvx", &mut [0; 2]), b"");
    }

    #[test]
    fn canonical_text_is_the_same_for_both_kinds_of_client() {
        assert_eq!(canonical(r"caf\u00e9 \ud83d\ude00\n"), "café 😀\\n");
        assert_eq!(canonical(r"\u000a\u0022\u005c\u001F"), r#"\n\"\\\u001f"#);
        assert_eq!(canonical(r"\\u00e9"), r"\\u00e9");
        assert_eq!(canonical(r"\ud83d!"), r"\ud83d!");
    }

    #[test]
    fn written_strings_are_read_back_by_serde_json() {
        let text = "q\" b\\ n\n t\t c\u{1} d\u{7f} é 😀";
        let mut out = Vec::new();
        write_string(text, &mut out);
        assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), text);
    }
}

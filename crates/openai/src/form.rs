//! The facts in the parts of a multipart form, read from its beginning while it is still coming; must not read files.
//!
//! The forms that vLLM takes have no member that steers an engine: their fields are texts, and a text is no object.

use std::ops::Range;

use memchr::memmem;

/// Longest value of a part that is read, in bytes.
const VALUE_LIMIT: usize = 4096;

/// Longest head of a part, in bytes. Behind a longer one nothing is read.
const HEAD_LIMIT: usize = 8192;

/// What ends it.
const HEAD_END: &[u8] = b"\r\n\r\n";

/// The text that separates the parts, as `Content-Type` tells it; `None` if that is no multipart form.
pub fn boundary(content_type: &[u8]) -> Option<Vec<u8>> {
    let mut parameters = content_type.split(|byte| *byte == b';');
    let kind = parameters.next()?.trim_ascii();
    if !kind.eq_ignore_ascii_case(b"multipart/form-data") {
        return None;
    }
    let value = parameters.find_map(|parameter| {
        let (name, value) = split_once(parameter.trim_ascii(), b'=')?;
        name.trim_ascii().eq_ignore_ascii_case(b"boundary").then(|| unquoted(value.trim_ascii()))
    })?;
    // As RFC 2046 has it, and enough for whoever follows it.
    ((1..=70).contains(&value.len())).then(|| value.to_vec())
}

/// Reads a form as it comes.
#[derive(Debug)]
pub struct FormReader {
    /// What ends a part: line end, dashes, boundary.
    delimiter: Vec<u8>,
    /// Everything before this has been read.
    at: usize,
    state: State,
    model: Option<String>,
    /// Where its name stands.
    model_at: Range<usize>,
    stream: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// In front of the first part.
    Preamble,
    /// At the head of a part.
    Head,
    /// In the value of a part that is of no interest.
    Skipped,
    Model,
    Stream,
    /// Behind the last part.
    End,
}

impl FormReader {
    /// Of a form whose parts are separated by this.
    pub fn new(boundary: &[u8]) -> Self {
        let delimiter = [b"\r\n--", boundary].concat();
        Self { delimiter, at: 0, state: State::Preamble, model: None, model_at: 0..0, stream: false }
    }

    /// The model that the form names, as far as it was read. Of several the last one counts, as in the worker.
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref().filter(|name| !name.is_empty())
    }

    /// Where the model's name stands in the form, if it names one.
    pub fn model_place(&self) -> Option<Range<usize>> {
        self.model().map(|_| self.model_at.clone())
    }

    /// Whether the answer is to be an event stream, as far as it was read.
    pub fn stream(&self) -> bool {
        self.stream
    }

    /// Whether nothing more can be learnt from it.
    pub fn is_over(&self) -> bool {
        self.state == State::End
    }

    /// Reads on in what has come, from the form's first byte.
    pub fn read(&mut self, so_far: &[u8]) {
        while self.state != State::End && self.step(so_far) {}
    }

    /// One part of a part; false if more has to come first.
    fn step(&mut self, so_far: &[u8]) -> bool {
        let rest = so_far.get(self.at..).unwrap_or_default();
        match self.state {
            State::Preamble => {
                // The first delimiter may stand at the very beginning, without a line end before it.
                let first = &self.delimiter[2..];
                if rest.len() < first.len() {
                    return false;
                }
                if rest.starts_with(first) {
                    return self.behind_delimiter(rest, first.len());
                }
                self.state = State::Skipped;
                true
            }
            State::Head => match memmem::find(rest, HEAD_END) {
                Some(end) if end <= HEAD_LIMIT => {
                    self.state = kind_of(&rest[..end]);
                    // The line end stays, since a delimiter may begin with it.
                    self.at += end + 2;
                    true
                }
                found => {
                    if found.is_some() || rest.len() >= HEAD_LIMIT + HEAD_END.len() {
                        self.state = State::End;
                    }
                    false
                }
            },
            State::Skipped | State::Model | State::Stream => match memmem::find(rest, &self.delimiter) {
                Some(end) => {
                    self.value(rest.get(2..end).unwrap_or_default());
                    self.behind_delimiter(rest, end + self.delimiter.len())
                }
                None => {
                    if self.state == State::Skipped || rest.len() > 2 + VALUE_LIMIT + self.delimiter.len() {
                        self.state = State::Skipped;
                        self.at += (rest.len() + 1).saturating_sub(self.delimiter.len());
                    }
                    false
                }
            },
            State::End => false,
        }
    }

    /// What stands behind a delimiter that ends at `end` of `rest`: another part, or nothing.
    fn behind_delimiter(&mut self, rest: &[u8], end: usize) -> bool {
        let Some(next) = rest.get(end..end + 2) else { return false };
        self.state = if next == b"--" { State::End } else { State::Head };
        self.at += end;
        true
    }

    /// A longer value is none, in whatever pieces it came.
    fn value(&mut self, value: &[u8]) {
        match self.state {
            _ if value.len() > VALUE_LIMIT => {}
            State::Model => {
                self.model = std::str::from_utf8(value).ok().map(str::to_owned);
                // The value begins behind the line end of its head.
                self.model_at = self.at + 2..self.at + 2 + value.len();
            }
            State::Stream => {
                let yes: [&[u8]; 6] = [b"true", b"1", b"on", b"yes", b"t", b"y"];
                self.stream = yes.iter().any(|yes| value.trim_ascii().eq_ignore_ascii_case(yes));
            }
            State::Preamble | State::Head | State::Skipped | State::End => {}
        }
    }
}

/// What the value behind this head is.
fn kind_of(head: &[u8]) -> State {
    let mut lines = head.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let disposition = lines.find_map(|line| {
        let (name, value) = split_once(line, b':')?;
        name.trim_ascii().eq_ignore_ascii_case(b"content-disposition").then_some(value)
    });
    let mut name = None;
    for parameter in disposition.unwrap_or_default().split(|byte| *byte == b';') {
        let Some((key, value)) = split_once(parameter.trim_ascii(), b'=') else { continue };
        let key = key.trim_ascii();
        // A file, whatever its name.
        if key.eq_ignore_ascii_case(b"filename") || key.eq_ignore_ascii_case(b"filename*") {
            return State::Skipped;
        }
        if key.eq_ignore_ascii_case(b"name") {
            name = Some(unquoted(value.trim_ascii()));
        }
    }
    match name {
        Some(b"model") => State::Model,
        Some(b"stream") => State::Stream,
        _ => State::Skipped,
    }
}

fn split_once(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let at = memchr::memchr(at, text)?;
    Some((&text[..at], &text[at + 1..]))
}

fn unquoted(value: &[u8]) -> &[u8] {
    value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What forms are made of, and what is not.
    const WORDS: [&[u8]; 14] = [
        b"--b",
        b"\r\n--b\r\n",
        b"\r\n--b--",
        b"\r\n",
        b"\r\n\r\n",
        b"Content-Disposition: form-data; name=model",
        b"Content-Disposition: form-data; name=\"stream\"",
        b"; filename=x",
        b"true",
        b"\xff",
        b"-",
        b"\n",
        &[b'x'; VALUE_LIMIT],
        &[b'y'; HEAD_LIMIT],
    ];

    fn form(parts: &[(&str, &str)]) -> Vec<u8> {
        let mut form = Vec::new();
        for (head, value) in parts {
            form.extend_from_slice(
                format!("--b\r\nContent-Disposition: form-data; {head}\r\n\r\n{value}\r\n").as_bytes(),
            );
        }
        form.extend_from_slice(b"--b--\r\n");
        form
    }

    fn read(form: &[u8]) -> (Option<String>, bool, bool) {
        let mut reader = FormReader::new(b"b");
        reader.read(form);
        (reader.model().map(str::to_owned), reader.stream(), reader.is_over())
    }

    #[test]
    fn the_model_is_found_wherever_its_part_stands() {
        let file = ("name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav", "RIFF\r\n--\r\n\r\n--c");
        let (model, stream) = (("name=\"model\"", "whisper"), ("name=stream", "True"));
        for parts in [[model, file, stream], [file, stream, model], [stream, model, file]] {
            assert_eq!(read(&form(&parts)), (Some("whisper".to_owned()), true, true));
        }
        assert_eq!(read(&form(&[file])), (None, false, true));
    }

    #[test]
    fn what_only_looks_like_the_model_is_not_taken_for_it() {
        let inside = "\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nevil\r\n";
        for parts in [
            [("name=\"file\"; filename=\"model\"", inside), ("name=\"stream\"", "false")],
            [("name=\"model\"; filename=\"x\"", "evil"), ("name=\"models\"", "evil")],
            [("name=\"model\"", ""), ("name=\"x\"; y=\"name=model\"", "evil")],
        ] {
            assert_eq!(read(&form(&parts)), (None, false, true), "{parts:?}");
        }
        let long = "x".repeat(VALUE_LIMIT * 2);
        assert_eq!(read(&form(&[("name=\"model\"", &long)])), (None, false, true));
        let twice = form(&[("name=\"model\"", "a"), ("name=\"model\"", "b")]);
        assert_eq!(read(&twice).0.as_deref(), Some("b"));
    }

    #[test]
    fn boundaries_are_read_as_they_are_written() {
        let is = |text: &str| boundary(text.as_bytes()).map(|found| String::from_utf8(found).unwrap());
        assert_eq!(is("multipart/form-data; boundary=x").as_deref(), Some("x"));
        assert_eq!(is("Multipart/Form-Data;charset=utf-8; Boundary=\"a b\"").as_deref(), Some("a b"));
        for none in ["application/json", "multipart/form-data", "multipart/form-data; boundary=", ""] {
            assert_eq!(is(none), None, "{none}");
        }
        assert_eq!(is(&format!("multipart/form-data; boundary={}", "x".repeat(71))), None);
    }

    proptest! {
        #[test]
        fn however_it_comes_the_same_is_read(cut in 1_usize..40, size in 0_usize..9000) {
            let file = "z".repeat(size);
            let form = form(&[("name=\"file\"; filename=\"f\"", &file), ("name=\"model\"", "m"), ("name=\"stream\"", "1")]);
            let mut reader = FormReader::new(b"b");
            for end in (0..form.len()).step_by(cut).chain([form.len()]) {
                reader.read(&form[..end]);
            }
            prop_assert_eq!((reader.model(), reader.stream(), reader.is_over()), (Some("m"), true, true));
        }

        #[test]
        fn no_bytes_make_it_panic_and_their_pieces_make_no_difference(
            words in prop::collection::vec(prop::sample::select(WORDS.to_vec()), 0..30),
            step in 1_usize..50,
        ) {
            let wire = words.concat();
            let (mut at_once, mut by_and_by) = (FormReader::new(b"b"), FormReader::new(b"b"));
            at_once.read(&wire);
            (0..wire.len()).step_by(step).for_each(|end| by_and_by.read(&wire[..end]));
            by_and_by.read(&wire);
            let told = |form: &FormReader| (form.model_place(), form.stream(), form.is_over());
            prop_assert_eq!(told(&at_once), told(&by_and_by));
            let named = at_once.model_place().map(|place| wire[place].to_vec());
            prop_assert_eq!(named.as_deref(), at_once.model().map(str::as_bytes));
            let _ = boundary(&wire);
        }
    }
}

//! The client's answer: the first token, and behind it the completion of the decode worker in the client's own dialect, with
//! the counts that a single worker would tell.

use bytes::Bytes;
use forebay_openai::walk::Array;
use forebay_openai::{Change, Members, Splices, Usage};

use crate::endpoint::Endpoint;
use crate::hand_over::{FIELD, number};
use crate::lmcache::first::First;

/// The end of a stream.
pub(crate) const DONE: &[u8] = b"data: [DONE]\n\n";

/// What is put in front of a decode worker's answer, and how that is rewritten.
#[derive(Debug)]
pub struct Continuation {
    first: First,
    is_chat: bool,
    /// The first token has gone.
    has_led: bool,
}

/// What an object of an answer becomes.
pub(crate) struct Form<'a> {
    pub is_chat: bool,
    /// It is all of an answer, not a record of a stream.
    pub is_whole: bool,
    /// What came before it, which the counts lack.
    pub first: Option<&'a First>,
}

impl Continuation {
    /// Behind this token, for a client of this API.
    pub fn new(first: First, endpoint: Endpoint) -> Self {
        Self { first, is_chat: endpoint == Endpoint::Chat, has_led: false }
    }

    /// A whole answer as the client gets it; `None` if it is none.
    pub fn of_answer(&self, answer: &Bytes) -> Option<Bytes> {
        edited(answer, &Form { is_chat: self.is_chat, is_whole: true, first: Some(&self.first) })
    }

    /// Whole records of a stream as the client gets them.
    pub fn of_records(&mut self, records: &Bytes) -> Bytes {
        let mut out = Vec::with_capacity(records.len() + 512);
        for line in records.split_inclusive(|byte| *byte == b'\n') {
            let said = line.strip_prefix(b"data:").map(<[u8]>::trim_ascii);
            match said {
                Some(b"[DONE]") => {
                    self.lead(None, &mut out);
                    out.extend_from_slice(line);
                }
                Some(json) if json.starts_with(b"{") => {
                    let json = records.slice_ref(json);
                    self.record(&json, line, &mut out);
                }
                _ => out.extend_from_slice(line),
            }
        }
        out.into()
    }

    /// The counts of a stream, as the decode worker told them, of the whole answer.
    #[must_use]
    pub fn counts(&self, told: Usage) -> Usage {
        Usage {
            prompt_tokens: told.prompt_tokens.map(|count| self.first.prompt_tokens_of(count)),
            completion_tokens: told.completion_tokens.map(|count| count.saturating_add(1)),
            cached_tokens: self.first.cached_tokens.or(told.cached_tokens),
        }
    }

    fn record(&mut self, json: &Bytes, line: &[u8], out: &mut Vec<u8>) {
        let form = Form { is_chat: self.is_chat, is_whole: false, first: Some(&self.first) };
        match edited(json, &form) {
            Some(edited) => {
                self.lead(Some(json), out);
                let at = json.as_ptr() as usize - line.as_ptr() as usize;
                out.extend_from_slice(&line[..at]);
                out.extend_from_slice(&edited);
                out.extend_from_slice(&line[at + json.len()..]);
            }
            // An error, which has nothing to put right.
            None => out.extend_from_slice(line),
        }
    }

    /// The first token, once. It is told as the answer that follows, so that both are one.
    fn lead(&mut self, record: Option<&Bytes>, out: &mut Vec<u8>) {
        if std::mem::replace(&mut self.has_led, true) {
            return;
        }
        let head = Head::read(record.unwrap_or(self.first.answer()), self.is_chat);
        head.role(out);
        head.token(out, self.first.text(), (b"null", b"null"));
    }
}

impl First {
    /// Tokens of the prompt, where a decode worker counted so many.
    pub(crate) fn prompt_tokens_of(&self, counted: u64) -> u64 {
        self.prompt_tokens.unwrap_or_else(|| counted.saturating_sub(1))
    }
}

/// An object of an answer in the client's dialect, with its counts put right; `None` if it is none with choices.
pub(crate) fn edited(json: &Bytes, form: &Form<'_>) -> Option<Bytes> {
    let mut splices = Splices::default();
    let mut has_choices = false;
    for member in Members::new(json).ok()? {
        let member = member.ok()?;
        let at = member.value.start;
        match &json[member.key.raw] {
            b"id" if form.is_chat && json[at..].starts_with(b"\"cmpl-") => {
                splices.replace(at..at + 1, Bytes::from_static(b"\"chat"));
            }
            b"object" if form.is_chat => splices.replace(member.value, object(form.is_whole)),
            b"choices" if json[at] == b'[' => {
                has_choices = true;
                choices(json, at, form, &mut splices)?;
            }
            b"usage" if json[at] == b'{' => usage(json, at, form, &mut splices)?,
            _ => {}
        }
    }
    splices.change(json, &[], &[Change::Cut(FIELD)]).ok()?;
    has_choices.then(|| splices.apply(json))
}

fn object(is_whole: bool) -> Bytes {
    Bytes::from_static(if is_whole { b"\"chat.completion\"" } else { b"\"chat.completion.chunk\"" })
}

/// The text of each choice, of which there is one at most.
fn choices(json: &Bytes, at: usize, form: &Form<'_>, splices: &mut Splices) -> Option<()> {
    let mut list = Array::open(json, at).ok()?;
    while let Some(at) = list.next_element().ok()? {
        for member in Members::nested(json, at).ok()? {
            let member = member.ok()?;
            if &json[member.key.raw.clone()] != b"text" {
                continue;
            }
            let first = form.first.filter(|_| form.is_whole).map_or(&b""[..], First::text);
            let text = json[member.value.clone()].strip_prefix(b"\"")?;
            let joined = [b"\"", first, text].concat();
            match form.is_chat {
                true => {
                    let (before, behind): (&[u8], _) = match form.is_whole {
                        true => (br#""message":{"role":"assistant","content":"#, b"}"),
                        false => (br#""delta":{"content":"#, b"}"),
                    };
                    let said = [before, &joined, behind].concat();
                    splices.replace(member.key.raw.start - 1..member.value.end, said.into());
                }
                false if first.is_empty() => {}
                false => splices.replace(member.value, joined.into()),
            }
        }
        list.skip_element().ok()?;
    }
    Some(())
}

/// For a decode worker the first token is of the prompt. The sum is the same.
fn usage(json: &Bytes, at: usize, form: &Form<'_>, splices: &mut Splices) -> Option<()> {
    let Some(first) = form.first else { return Some(()) };
    for member in Members::nested(json, at).ok()? {
        let member = member.ok()?;
        let (told, at) = (number(&json[member.value.clone()]), member.value.start);
        match (&json[member.key.raw], told) {
            (b"prompt_tokens", Some(count)) => {
                splices.replace(member.value, first.prompt_tokens_of(count).to_string().into());
            }
            (b"completion_tokens", Some(count)) => {
                splices.replace(member.value, count.saturating_add(1).to_string().into());
            }
            (b"prompt_tokens_details", _) if json[at] == b'{' => {
                for detail in Members::nested(json, at).ok()? {
                    let detail = detail.ok()?;
                    if let (b"cached_tokens", Some(cached)) = (&json[detail.key.raw], first.cached_tokens) {
                        splices.replace(detail.value, cached.to_string().into());
                    }
                }
            }
            _ => {}
        }
    }
    Some(())
}

/// What all records of a stream begin with.
pub(crate) struct Head {
    id: Bytes,
    created: Bytes,
    model: Bytes,
    is_chat: bool,
}

impl Head {
    /// As an answer, or a record of one, has it.
    pub(crate) fn read(json: &Bytes, is_chat: bool) -> Self {
        let nothing = || Bytes::from_static(b"null");
        let mut head = Self { id: nothing(), created: nothing(), model: nothing(), is_chat };
        for member in Members::new(json).into_iter().flatten().map_while(Result::ok) {
            let value = json.slice(member.value);
            match &json[member.key.raw] {
                b"id" => head.id = value,
                b"created" => head.created = value,
                b"model" => head.model = value,
                _ => {}
            }
        }
        if let (true, Some(rest)) = (is_chat, head.id.strip_prefix(b"\"cmpl-")) {
            head.id = [b"\"chatcmpl-", rest].concat().into();
        }
        head
    }

    /// A record up to its choices.
    pub(crate) fn start(&self) -> Vec<u8> {
        let object: &[u8] = if self.is_chat { b"chat.completion.chunk" } else { b"text_completion" };
        let Self { id, created, model, .. } = self;
        let pieces: [&[u8]; 9] = [
            br#"{"id":"#,
            id,
            br#","object":""#,
            object,
            br#"","created":"#,
            created,
            br#","model":"#,
            model,
            br#","choices":["#,
        ];
        pieces.concat()
    }

    /// The record that says who speaks, where there is one.
    pub(crate) fn role(&self, out: &mut Vec<u8>) {
        const ROLE: &[u8] = br#"{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}"#;
        if self.is_chat {
            data(out, &[&self.start(), ROLE]);
        }
    }

    /// The record of a token with this text, and of why the answer ends with it.
    pub(crate) fn token(&self, out: &mut Vec<u8>, text: &[u8], (finish, stop): (&[u8], &[u8])) {
        let (before, behind): (&[u8], &[u8]) = match self.is_chat {
            true => (br#"{"index":0,"delta":{"content":""#, br#""},"logprobs":null,"finish_reason":"#),
            false => (br#"{"index":0,"text":""#, br#"","logprobs":null,"finish_reason":"#),
        };
        data(out, &[&self.start(), before, text, behind, finish, br#","stop_reason":"#, stop, b"}]}"]);
    }
}

/// One record.
pub(crate) fn data(out: &mut Vec<u8>, pieces: &[&[u8]]) {
    out.extend_from_slice(b"data: ");
    pieces.iter().for_each(|piece| out.extend_from_slice(piece));
    out.extend_from_slice(b"\n\n");
}

#[cfg(test)]
mod tests;

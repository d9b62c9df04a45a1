//! Whether a conversation is text and nothing else, so that its ids are all of it.

use forebay_openai::walk::{Array, KeyBuffer};
use forebay_openai::{BodyError, Members};

use crate::condition::Bypass;

/// Looks through the messages that begin at `at`.
///
/// # Errors
/// What else there is.
pub(crate) fn check(body: &[u8], at: usize) -> Result<(), Bypass> {
    each(body, at, &mut |at| message(body, at))
}

fn message(body: &[u8], at: usize) -> Result<(), Bypass> {
    for member in Members::nested(body, at).map_err(odd)? {
        let member = member.map_err(odd)?;
        let value = &body[member.value.clone()];
        let mut buffer = KeyBuffer::default();
        match member.key.name(body, &mut buffer) {
            b"role" if value == b"\"tool\"" || value == b"\"function\"" => return Err(Bypass::Tools),
            b"role" | b"name" => {}
            b"content" if value.starts_with(b"[") => {
                each(body, member.value.start, &mut |at| part(body, at))?;
            }
            b"content" if value.starts_with(b"\"") => {}
            _ if matches!(value, b"null" | b"[]") => {}
            b"tool_calls" | b"function_call" | b"tool_call_id" => return Err(Bypass::Tools),
            b"reasoning" | b"reasoning_content" | b"thinking" => return Err(Bypass::Reasoning),
            _ => return Err(Bypass::Options),
        }
    }
    Ok(())
}

fn part(body: &[u8], at: usize) -> Result<(), Bypass> {
    let mut is_text = false;
    for member in Members::nested(body, at).map_err(odd)? {
        let member = member.map_err(odd)?;
        let mut buffer = KeyBuffer::default();
        match (member.key.name(body, &mut buffer), &body[member.value]) {
            (b"type", b"\"text\"") => is_text = true,
            (b"text", value) if value.starts_with(b"\"") => {}
            _ => return Err(Bypass::Options),
        }
    }
    if is_text { Ok(()) } else { Err(Bypass::Options) }
}

/// Each element of the list that begins at `at`.
fn each(body: &[u8], at: usize, check: &mut dyn FnMut(usize) -> Result<(), Bypass>) -> Result<(), Bypass> {
    let mut list = Array::open(body, at).map_err(odd)?;
    while let Some(at) = list.next_element().map_err(odd)? {
        check(at)?;
        list.skip_element().map_err(odd)?;
    }
    Ok(())
}

fn odd(_: BodyError) -> Bypass {
    Bypass::Options
}

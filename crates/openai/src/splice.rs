//! Edits of a body that leave every other byte alone; must not know what any member means.

use std::ops::Range;

use bytes::Bytes;

use crate::{
    escape,
    members::{Member, Members},
    walk::{BodyError, Key, KeyBuffer},
};

/// What to do with one member of an object. Names are compared after unescaping; every duplicate is changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change<'k> {
    /// Remove the member; nothing happens if it is absent.
    Cut(&'k str),
    /// Give the member this JSON value; it is put at the start of the object if it is absent.
    Set(&'k str, Bytes),
    /// Give the member this JSON value; nothing happens if it is absent.
    Replace(&'k str, Bytes),
}

/// A list of edits of one body.
#[derive(Debug, Clone, Default)]
pub struct Splices {
    edits: Vec<Edit>,
    /// The `{` of each object that has no members once the edits are made, apart from inserted ones.
    empty: Vec<usize>,
}

#[derive(Debug, Clone)]
struct Edit {
    range: Range<usize>,
    text: Bytes,
    /// True for a member put at the start of an object.
    insert: bool,
}

/// Decides which comma goes with each cut member, so that what remains is well formed.
///
/// A member takes the comma behind it. Only when the last members of an object are cut is there one comma too few behind
/// them; the first of that run then takes the comma in front of it too.
#[derive(Debug, Default)]
pub(crate) struct CommaRule {
    run: Option<(usize, Option<usize>)>,
}

impl CommaRule {
    /// The range to cut for a member that ends at `value_end`; `index` is where the caller keeps it.
    pub(crate) fn cut(
        &mut self,
        index: usize,
        key: &Key,
        value_end: usize,
        comma: Option<usize>,
    ) -> Range<usize> {
        self.run.get_or_insert((index, key.comma_before));
        key.raw.start - 1..comma.map_or(value_end, |comma| comma + 1)
    }

    /// Says that a member stays.
    pub(crate) fn keep(&mut self) {
        self.run = None;
    }

    /// At the end of the object: which range has to start earlier, and where.
    pub(crate) fn finish(self) -> Option<(usize, usize)> {
        self.run.and_then(|(index, comma)| Some((index, comma?)))
    }
}

impl Splices {
    /// True if there is nothing to edit.
    pub fn is_empty(&self) -> bool {
        self.edits.is_empty()
    }

    /// Replaces the bytes in `range` by `text`. Of edits that overlap, the one that starts first holds.
    pub fn replace(&mut self, range: Range<usize>, text: Bytes) {
        self.edits.push(Edit { range, text, insert: false });
    }

    /// Adds edits that change members of the object at `path` (empty: the top-level object), in one walk over it.
    ///
    /// All changes of one object have to be in one call. A member of `path` that is absent or not an object is set to an
    /// object with the [`Change::Set`]s. If it is there more than once, each is changed.
    ///
    /// # Errors
    /// [`BodyError`] if the members cannot be walked; nothing is added then.
    pub fn change(&mut self, body: &[u8], path: &[&str], changes: &[Change<'_>]) -> Result<(), BodyError> {
        let before = (self.edits.len(), self.empty.len());
        let done = self.change_in(body, Members::new(body)?, path, changes);
        if done.is_err() {
            self.edits.truncate(before.0);
            self.empty.truncate(before.1);
        }
        done
    }

    fn change_in(
        &mut self,
        body: &[u8],
        members: Members<'_>,
        path: &[&str],
        changes: &[Change<'_>],
    ) -> Result<(), BodyError> {
        let Some((outer, inner)) = path.split_first() else {
            return self.change_here(body, members, changes);
        };
        let mut found = Vec::new();
        let open = members.open_brace();
        let mut empty = true;
        for member in members {
            let member = member?;
            empty = false;
            if is_named(body, &member, outer) {
                found.push(member.value);
            }
        }
        if empty {
            self.empty.push(open);
        }
        for value in &found {
            if body[value.start] == b'{' {
                self.change_in(body, Members::nested(body, value.start)?, inner, changes)?;
            } else if let Some(text) = new_object(inner, changes) {
                self.replace(value.clone(), text);
            }
        }
        if found.is_empty()
            && let Some(text) = new_object(inner, changes)
        {
            self.insert(open, outer, &text);
        }
        Ok(())
    }

    fn change_here(
        &mut self,
        body: &[u8],
        members: Members<'_>,
        changes: &[Change<'_>],
    ) -> Result<(), BodyError> {
        let open = members.open_brace();
        let mut rule = CommaRule::default();
        let mut found = vec![false; changes.len()];
        let mut empty = true;
        for member in members {
            let member = member?;
            let hit = changes.iter().position(|change| is_named(body, &member, change.name()));
            if let Some(index) = hit {
                found[index] = true;
            }
            match hit.map(|index| &changes[index]) {
                Some(Change::Cut(_)) => {
                    let range = rule.cut(self.edits.len(), &member.key, member.value.end, member.comma_after);
                    self.replace(range, Bytes::new());
                    continue;
                }
                Some(Change::Set(_, value) | Change::Replace(_, value)) => {
                    self.replace(member.value.clone(), value.clone());
                }
                None => {}
            }
            rule.keep();
            empty = false;
        }
        if let Some((index, start)) = rule.finish() {
            self.edits[index].range.start = start;
        }
        if empty {
            self.empty.push(open);
        }
        for (change, found) in changes.iter().zip(found) {
            if let Change::Set(name, value) = change
                && !found
            {
                self.insert(open, name, value);
            }
        }
        Ok(())
    }

    fn insert(&mut self, open: usize, name: &str, value: &[u8]) {
        let text = Bytes::from(member_text(name, value));
        self.edits.push(Edit { range: open + 1..open + 1, text, insert: true });
    }

    /// The edited body in one piece; the body itself if there is nothing to edit.
    pub fn apply(&self, body: &Bytes) -> Bytes {
        if self.is_empty() {
            return body.clone();
        }
        let pieces = self.pieces(body);
        let mut out = Vec::with_capacity(pieces.iter().map(Bytes::len).sum());
        for piece in pieces {
            out.extend_from_slice(&piece);
        }
        Bytes::from(out)
    }

    /// The edited body as pieces that share the body's memory, for vectored writes of large bodies.
    pub fn pieces(&self, body: &Bytes) -> Vec<Bytes> {
        let mut order: Vec<&Edit> = self.edits.iter().collect();
        order.sort_by_key(|edit| (edit.range.start, edit.range.end));
        let mut pieces = Vec::with_capacity(order.len() * 2 + 1);
        let mut at = 0;
        for (index, edit) in order.iter().enumerate() {
            if edit.range.start < at || edit.range.end > body.len() {
                continue;
            }
            if edit.range.start > at {
                pieces.push(body.slice(at..edit.range.start));
            }
            if !edit.text.is_empty() {
                pieces.push(edit.text.clone());
            }
            let another = order.get(index + 1).is_some_and(|next| next.insert && next.range == edit.range);
            if edit.insert && (another || !self.empty.contains(&(edit.range.start - 1))) {
                pieces.push(Bytes::from_static(b","));
            }
            at = edit.range.end;
        }
        if at < body.len() {
            pieces.push(body.slice(at..));
        }
        pieces
    }
}

impl Change<'_> {
    fn name(&self) -> &str {
        match self {
            Self::Cut(name) | Self::Set(name, _) | Self::Replace(name, _) => name,
        }
    }
}

fn is_named(body: &[u8], member: &Member, name: &str) -> bool {
    member.key.name(body, &mut KeyBuffer::default()) == name.as_bytes()
}

fn member_text(name: &str, value: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(name.len() + value.len() + 3);
    escape::write_string(name, &mut text);
    text.push(b':');
    text.extend_from_slice(value);
    text
}

/// An object at the end of `path` with the members that are set; `None` if none is.
fn new_object(path: &[&str], changes: &[Change<'_>]) -> Option<Bytes> {
    let mut members = Vec::new();
    for change in changes {
        let Change::Set(name, value) = change else {
            continue;
        };
        if !members.is_empty() {
            members.push(b',');
        }
        members.extend_from_slice(&member_text(name, value));
    }
    if members.is_empty() {
        return None;
    }
    let wrap = |inner: Vec<u8>| [b"{".as_slice(), &inner, b"}"].concat();
    let object = path.iter().rev().fold(wrap(members), |inner, name| wrap(member_text(name, &inner)));
    Some(Bytes::from(object))
}

#[cfg(test)]
mod tests;

//! The whole members of an object as an iterator, for all that is not on the hot path; must not walk by itself.

use std::ops::Range;

use crate::walk::{BodyError, Key, Object, document, document_end};

/// A whole member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its key.
    pub key: Key,
    /// The value's bytes, quotes or brackets included.
    pub value: Range<usize>,
    /// The comma behind this member, if it is not the last.
    pub comma_after: Option<usize>,
}

/// The whole members of a body's top-level object, one by one; ends after the first error.
#[derive(Debug)]
pub struct Members<'a> {
    body: &'a [u8],
    object: Object<'a>,
    open: usize,
    document: bool,
    done: bool,
}

impl<'a> Members<'a> {
    /// The members of the top-level object of `body`; the end of the body is checked too.
    ///
    /// # Errors
    /// [`BodyError`] as [`document`].
    pub fn new(body: &'a [u8]) -> Result<Self, BodyError> {
        let open = document(body)?;
        Ok(Self { body, object: Object::open(body, open)?, open, document: true, done: false })
    }

    /// The members of the object that starts at `at` in a body that was checked before.
    ///
    /// # Errors
    /// [`BodyError::Broken`] if there is no object.
    pub fn nested(body: &'a [u8], at: usize) -> Result<Self, BodyError> {
        Ok(Self { body, object: Object::open(body, at)?, open: at, document: false, done: false })
    }

    /// Where the object's `{` is.
    pub(crate) fn open_brace(&self) -> usize {
        self.open
    }

    fn step(&mut self) -> Result<Option<Member>, BodyError> {
        let Some(key) = self.object.next_key()? else {
            if self.document {
                document_end(self.body, self.object.end())?;
            }
            return Ok(None);
        };
        let value = self.object.skip_value()?;
        Ok(Some(Member { key, value, comma_after: self.object.comma_after() }))
    }
}

impl Iterator for Members<'_> {
    type Item = Result<Member, BodyError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let step = self.step();
        self.done = !matches!(step, Ok(Some(_)));
        step.transpose()
    }
}

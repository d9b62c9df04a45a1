//! Other names of models: put right in requests, and back in answers where the model's name stands first.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use forebay_openai::{BodyError, Change, ModelPlace, Renaming, Splices};

/// Longest beginning of an answer in which the model's name is looked for, in bytes. Answers of the messages API have all of
/// their text before it.
const BEGINNING: usize = 64 * 1024;

/// Other names of models that clients may give, each for one that workers serve.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Aliases(HashMap<String, Alias>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Alias {
    model: String,
    renaming: Arc<Renaming>,
}

impl Aliases {
    /// Of pairs of an alias and its model.
    pub fn new(names: impl IntoIterator<Item = (String, String)>) -> Self {
        let alias = |(alias, model): (String, String)| {
            let renaming = Arc::new(Renaming::new(&model, &alias));
            (alias, Alias { model, renaming })
        };
        Self(names.into_iter().map(alias).collect())
    }

    /// What workers call the model that a request calls so, and how answers are put right. `None` if it is no alias.
    pub(crate) fn find(&self, name: &str) -> Option<(&str, &Arc<Renaming>)> {
        // Most routers have none: then no name is hashed.
        let alias = (!self.0.is_empty()).then(|| self.0.get(name)).flatten()?;
        Some((&alias.model, &alias.renaming))
    }

    /// A body that names an alias, with the model in its place.
    pub(crate) fn put_right(&self, name: &str, body: &Bytes) -> Result<Bytes, BodyError> {
        let Some(alias) = self.0.get(name) else { return Ok(body.clone()) };
        let mut splices = Splices::default();
        splices.change(body, &[], &[Change::Replace("model", alias.renaming.from().clone())])?;
        Ok(splices.apply(body))
    }

    /// All of them with their models, in the order of their names.
    pub(crate) fn all(&self) -> Vec<(&str, &str)> {
        let mut all: Vec<_> = self.0.iter().map(|(name, alias)| (&**name, &*alias.model)).collect();
        all.sort_unstable();
        all
    }
}

/// An answer in which a model gets the name that its client gave.
pub(crate) struct Renamed {
    renaming: Arc<Renaming>,
    /// The beginning of an answer that is no stream, until the name has been seen.
    held: BytesMut,
    is_done: bool,
}

impl Renamed {
    pub(crate) fn new(renaming: Arc<Renaming>) -> Self {
        Self { renaming, held: BytesMut::new(), is_done: false }
    }

    /// Whole records of an event stream.
    pub(crate) fn records(&self, records: Bytes) -> Bytes {
        self.renaming.of_records(records)
    }

    /// Takes part of an answer that is no stream; gives what may go on.
    pub(crate) fn pass(&mut self, chunk: Bytes) -> Bytes {
        if self.is_done {
            return chunk;
        }
        self.held.extend_from_slice(&chunk);
        let place = self.renaming.find(&self.held);
        self.is_done = place != ModelPlace::Later || self.held.len() > BEGINNING;
        match place {
            ModelPlace::At(place) => {
                let beginning = self.rest();
                self.renaming.at(&beginning, place)
            }
            _ if self.is_done => self.rest(),
            _ => Bytes::new(),
        }
    }

    /// What is still held back.
    pub(crate) fn rest(&mut self) -> Bytes {
        self.held.split().freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aliases() -> Aliases {
        Aliases::new([("nick".to_owned(), "ti\"ny".to_owned())])
    }

    #[test]
    fn a_body_gets_the_model_and_keeps_every_other_byte() {
        let body =
            Bytes::from_static(br#"{ "temperature":0.70000000000000001, "model" : "nick", "x":"nick" }"#);
        let put_right = aliases().put_right("nick", &body).unwrap();
        assert_eq!(
            put_right,
            &br#"{ "temperature":0.70000000000000001, "model" : "ti\"ny", "x":"nick" }"#[..]
        );
        assert_eq!(aliases().find("tiny"), None);
        assert_eq!(Aliases::default().find("nick"), None);
    }

    #[test]
    fn an_answer_gets_the_alias_however_it_is_cut() {
        let answer = br#"{"id":"x","model":"ti\"ny","choices":[{"text":"ti\"ny"}]}"#;
        let expected = br#"{"id":"x","model":"nick","choices":[{"text":"ti\"ny"}]}"#;
        for size in 1..=answer.len() {
            let aliases = aliases();
            let mut renamed = Renamed::new(Arc::clone(aliases.find("nick").unwrap().1));
            let mut got = Vec::new();
            for chunk in answer.chunks(size) {
                got.extend_from_slice(&renamed.pass(Bytes::copy_from_slice(chunk)));
            }
            got.extend_from_slice(&renamed.rest());
            assert_eq!(got, expected, "{size}");
        }
    }

    #[test]
    fn an_answer_without_the_name_at_its_beginning_is_not_held_back_for_long() {
        let aliases = aliases();
        let mut renamed = Renamed::new(Arc::clone(aliases.find("nick").unwrap().1));
        let long = Bytes::from([br#"{"text":""#.to_vec(), vec![b'a'; 2 * BEGINNING]].concat());
        assert_eq!(renamed.pass(long.clone()), long);
        let mut other = Renamed::new(Arc::clone(aliases.find("nick").unwrap().1));
        assert_eq!(other.pass(Bytes::from_static(b"no json")), "no json");
    }
}

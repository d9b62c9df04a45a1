//! All that a router wants to know of a request body, read in one pass; must not decide anything with it.

use std::borrow::Cow;

use crate::{
    flatten::{Flatten, SLOT},
    prompt::{Part, Parts, Prompt, Scratch, Span},
    scalar,
    shape::{BodyShape, Field, MAX_SLOTS, Reading},
    splice::CommaRule,
    strip::{self, InternalField, Place, Strip},
    walk::{self, BodyError, Key, KeyBuffer, Object},
};

/// Facts of one body. Of duplicate members the last one counts, as in Python.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    /// The model asked for.
    pub model: ModelFact<'a>,
    /// True if the answer is to be an event stream.
    pub stream: bool,
    /// Answers per prompt; 1 if not said.
    pub n: u64,
    /// Candidates per prompt; 1 if not said.
    pub best_of: u64,
    /// True if beam search is asked for.
    pub use_beam_search: bool,
    /// True if log probabilities of the prompt are asked for, which makes an engine compute all of it.
    pub has_prompt_logprobs: bool,
    /// True if a prompt, or part of it, has no token ids that an engine could know it by.
    pub has_prompt_embeds: bool,
    /// The response that this one continues.
    pub previous_response_id: Option<Cow<'a, str>>,
    /// Whether the worker shall keep the response; `None` if not said.
    pub store: Option<bool>,
    /// True if the response is made in the background.
    pub background: bool,
    /// Raw JSON of `lora_path`, if not null.
    pub lora: Option<&'a [u8]>,
    /// Raw JSON of `cache_salt`, if not null.
    pub cache_salt: Option<&'a [u8]>,
    /// Tokens to be generated at most, by whatever name.
    pub max_tokens: Option<u64>,
    /// What identifies a session.
    pub session: SessionKeys<'a>,
    /// Prompts in the request, if it has a list of them; a list of token ids is one prompt.
    pub batch: Option<u64>,
    /// The prompt.
    pub prompt: Prompt<'a>,
    /// Internal fields that are in the body, in its order; see [`strip::cut`].
    pub strips: &'a [Strip],
}

/// The model a body names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelFact<'a> {
    /// None, null or empty: the base model.
    Absent,
    /// This name.
    Name(Cow<'a, str>),
    /// Something that is not a string; the worker knows what to answer.
    NotString,
}

/// What identifies a session, each from its own top-level place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionKeys<'a> {
    /// `session_params.session_id`
    pub session_params: Option<Cow<'a, str>>,
    /// `user`
    pub user: Option<Cow<'a, str>>,
    /// `session_id`
    pub session_id: Option<Cow<'a, str>>,
    /// `user_id`
    pub user_id: Option<Cow<'a, str>>,
}

/// The parts of one slot of the prompt.
#[derive(Clone, Copy, Default)]
struct Segment {
    from: usize,
    to: usize,
    ids: bool,
}

/// What is read from `sampling_params`.
#[derive(Clone, Copy, Default)]
struct Sampling {
    n: Span,
    best_of: Span,
    use_beam_search: Span,
    prompt_logprobs: Span,
    max_tokens: Span,
}

struct Reader<'a> {
    body: &'a [u8],
    shape: BodyShape,
    scratch: &'a mut Scratch,
    spans: [Span; Field::COUNT],
    segments: [Segment; MAX_SLOTS],
    sampling: Sampling,
    session: Span,
}

impl<'a> Facts<'a> {
    /// Reads the facts of `body`.
    ///
    /// # Errors
    /// [`BodyError`] if the members cannot be walked; never for a body that is UTF-8 and that Python's `json.loads` takes for
    /// an object.
    pub fn read(shape: BodyShape, body: &'a [u8], scratch: &'a mut Scratch) -> Result<Facts<'a>, BodyError> {
        scratch.clear();
        let mut reader = Reader {
            body,
            shape,
            scratch,
            spans: [Span::default(); Field::COUNT],
            segments: [Segment::default(); MAX_SLOTS],
            sampling: Sampling::default(),
            session: Span::default(),
        };
        reader.members()?;
        Ok(reader.facts())
    }
}

impl<'a> SessionKeys<'a> {
    /// The first that is there, in the order of the fields.
    pub fn first(&self) -> Option<&Cow<'a, str>> {
        self.session_params
            .as_ref()
            .or(self.user.as_ref())
            .or(self.session_id.as_ref())
            .or(self.user_id.as_ref())
    }
}

impl<'a> Reader<'a> {
    fn members(&mut self) -> Result<(), BodyError> {
        let body = self.body;
        let mut object = Object::open(body, walk::document(body)?)?;
        let mut rule = CommaRule::default();
        let mut buffer = KeyBuffer::default();
        while let Some(key) = object.next_key()? {
            let name = key.name(body, &mut buffer);
            if let Some(field) = InternalField::from_name(name) {
                let value = object.skip_value()?;
                if !field.holds_with(&body[value.start..value.end]) {
                    rule.keep();
                    continue;
                }
                let strips = &mut self.scratch.strips;
                let cut = rule.cut(strips.len(), &key, value.end, object.comma_after());
                strips.push(Strip { field, place: Place::Top, cut });
                continue;
            }
            rule.keep();
            let end = self.member(Field::from_name(name), &key)?;
            object.end_value(end)?;
        }
        strip::finish(rule, &mut self.scratch.strips);
        walk::document_end(body, object.end())
    }

    /// Reads one member and returns where its value ends.
    fn member(&mut self, field: Option<Field>, key: &Key) -> Result<usize, BodyError> {
        let at = key.value_at;
        let Some(field) = field else {
            return walk::value_end(self.body, at);
        };
        let is_object = self.body.get(at) == Some(&b'{');
        let slot = self.shape.slots().iter().position(|slot| slot.0 == field);
        let end = match (field, slot) {
            (Field::SessionParams, _) => self.session_params(at, is_object)?,
            (Field::SamplingParams, _) => self.sampling_params(at, is_object)?,
            (Field::VllmXargs, _) if is_object => {
                strip::collect(self.body, at, Place::VllmXargs, &mut self.scratch.strips)?
            }
            (_, Some(slot)) => self.slot(slot, key)?,
            _ => walk::value_end(self.body, at)?,
        };
        self.spans[field as usize] = Span { start: at, end };
        Ok(end)
    }

    fn slot(&mut self, slot: usize, key: &Key) -> Result<usize, BodyError> {
        let reading = self.shape.slots()[slot].1;
        let from = self.scratch.parts.len();
        let flat = Flatten { body: self.body, scratch: self.scratch }.value(key, reading)?;
        self.segments[slot] = Segment { from, to: self.scratch.parts.len(), ids: flat.ids };
        Ok(flat.end)
    }

    fn session_params(&mut self, at: usize, is_object: bool) -> Result<usize, BodyError> {
        self.session = Span::default();
        if !is_object {
            return walk::value_end(self.body, at);
        }
        let mut object = Object::open(self.body, at)?;
        while let Some(key) = object.next_key()? {
            let value = object.skip_value()?;
            if key.name(self.body, &mut KeyBuffer::default()) == b"session_id" {
                self.session = Span { start: value.start, end: value.end };
            }
        }
        Ok(object.end())
    }

    fn sampling_params(&mut self, at: usize, is_object: bool) -> Result<usize, BodyError> {
        self.sampling = Sampling::default();
        if !is_object {
            return walk::value_end(self.body, at);
        }
        let body = self.body;
        let mut object = Object::open(body, at)?;
        while let Some(key) = object.next_key()? {
            let mut buffer = KeyBuffer::default();
            let name = key.name(body, &mut buffer);
            if name == b"extra_args" && body.get(key.value_at) == Some(&b'{') {
                let strips = &mut self.scratch.strips;
                object.end_value(strip::collect(body, key.value_at, Place::ExtraArgs, strips)?)?;
                continue;
            }
            let value = object.skip_value()?;
            let value = Span { start: value.start, end: value.end };
            match name {
                b"n" => self.sampling.n = value,
                b"best_of" => self.sampling.best_of = value,
                b"use_beam_search" => self.sampling.use_beam_search = value,
                b"prompt_logprobs" => self.sampling.prompt_logprobs = value,
                b"max_tokens" | b"max_new_tokens" => self.sampling.max_tokens = value,
                _ => {}
            }
        }
        Ok(object.end())
    }

    fn raw(&self, field: Field) -> &'a [u8] {
        self.spans[field as usize].of(self.body)
    }

    fn given(&self, field: Field) -> Option<&'a [u8]> {
        Some(self.raw(field)).filter(|raw| scalar::given(raw))
    }

    /// The count in the first of these places that has one.
    fn count(&self, fields: &[Field], nested: Span) -> Option<u64> {
        let nested = scalar::count(nested.of(self.body));
        fields.iter().find_map(|field| scalar::count(self.raw(*field))).or(nested)
    }

    fn facts(mut self) -> Facts<'a> {
        use Field as F;
        let body = self.body;
        let echoed =
            scalar::truth(self.raw(F::Echo)) && self.given(F::Logprobs).is_some_and(|raw| raw != b"false");
        let max_names = [F::MaxCompletionTokens, F::MaxOutputTokens, F::MaxTokens];
        let ids = self.order();
        let facts = Facts {
            model: self.model(),
            stream: scalar::truth(self.raw(F::Stream)),
            n: self.count(&[F::N], self.sampling.n).unwrap_or(1),
            best_of: self.count(&[F::BestOf], self.sampling.best_of).unwrap_or(1),
            use_beam_search: scalar::truth(self.raw(F::UseBeamSearch))
                || scalar::truth(self.sampling.use_beam_search.of(body)),
            has_prompt_logprobs: echoed
                || self.given(F::PromptLogprobs).is_some()
                || scalar::given(self.sampling.prompt_logprobs.of(body)),
            has_prompt_embeds: self.given(F::PromptEmbeds).is_some(),
            previous_response_id: scalar::string(self.raw(F::PreviousResponseId)),
            store: self.given(F::Store).map(scalar::truth),
            background: scalar::truth(self.raw(F::Background)),
            lora: self.given(F::LoraPath),
            cache_salt: self.given(F::CacheSalt),
            max_tokens: self.count(&max_names, self.sampling.max_tokens),
            session: self.session_keys(),
            batch: prompts(self.raw(F::Prompt)),
            prompt: Prompt::None,
            strips: &[],
        };
        let scratch: &'a Scratch = self.scratch;
        let parts = Parts::new(body, &scratch.bytes, &scratch.ordered);
        let prompt = match ids {
            _ if scratch.ordered.is_empty() => Prompt::None,
            true => Prompt::Ids(parts),
            false => Prompt::Text(parts),
        };
        Facts { prompt, strips: &scratch.strips, ..facts }
    }

    fn model(&self) -> ModelFact<'a> {
        match self.given(Field::Model) {
            None => ModelFact::Absent,
            Some(raw) => match scalar::string(raw) {
                None => ModelFact::NotString,
                Some(name) if name.is_empty() => ModelFact::Absent,
                Some(name) => ModelFact::Name(name),
            },
        }
    }

    fn session_keys(&self) -> SessionKeys<'a> {
        SessionKeys {
            session_params: scalar::session(self.session.of(self.body)),
            user: scalar::session(self.raw(Field::User)),
            session_id: scalar::session(self.raw(Field::SessionId)),
            user_id: scalar::session(self.raw(Field::UserId)),
        }
    }

    /// Brings the slots into their order, whatever order the body has, and tells whether they are token ids.
    fn order(&mut self) -> bool {
        let slots = self.shape.slots();
        let filled = |segment: &Segment| segment.from < segment.to;
        let only_ids = slots
            .iter()
            .zip(&self.segments)
            .find(|(slot, segment)| slot.1 == Reading::Ids && segment.ids && filled(segment));
        let Scratch { parts, ordered, .. } = &mut *self.scratch;
        if let Some((_, segment)) = only_ids {
            ordered.extend_from_slice(&parts[segment.from..segment.to]);
            return true;
        }
        let mut all_ids = true;
        for segment in self.segments.iter().filter(|segment| filled(segment)) {
            if !ordered.is_empty() {
                ordered.push(Part::Static(SLOT));
            }
            ordered.extend_from_slice(&parts[segment.from..segment.to]);
            all_ids &= segment.ids;
        }
        all_ids
    }
}

/// How many prompts a list of prompts has; `None` if it is none.
fn prompts(raw: &[u8]) -> Option<u64> {
    let mut list = walk::Array::open(raw, 0).ok()?;
    let mut count = 0;
    while let Ok(Some(at)) = list.next_element() {
        if !matches!(raw.get(at), Some(b'"' | b'[')) {
            return None;
        }
        count += 1;
        list.skip_element().ok()?;
    }
    Some(count)
}

#[cfg(test)]
mod tests;

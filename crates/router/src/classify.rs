//! What a request asks for: its body read whole, what must not pass taken out, and the keys that policies choose by.

use std::cell::RefCell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use forebay_openai::{BodyError, BodyShape, Facts, ModelFact, Prompt, Renaming, Scratch, strip};
use forebay_pd::{Endpoint, PromptFacts};
use forebay_policy::{Choice, HashKey, HashKeyKind, PolicyKind, PrefixKey};
use http::HeaderMap;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::failure::Failure;
use crate::headers::Length;
use crate::incoming::Incoming;
use crate::metrics::RouterMetrics;
use crate::settings::RouterSettings;
use crate::upload::Upload;

thread_local! {
    /// Where the parser puts what it cannot borrow from the body.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// The byte order mark, which Python skips.
const BOM: &[u8] = b"\xef\xbb\xbf";

/// What the stages after this one need of a request.
#[derive(Default)]
pub(crate) struct Asked {
    /// The body for the worker.
    pub body: Bytes,
    /// The model it names.
    pub model: Option<String>,
    /// Whether the body was a JSON object, so that a model could have been named.
    pub is_object: bool,
    /// Key of its prompt, for policies that know prefixes.
    pub prefix: Option<PrefixKey>,
    /// Whether a worker must not get it twice, since each time would leave something behind.
    pub once_only: bool,
    /// Tokens of its prompt, if it came as ids.
    pub tokens: Option<u64>,
    /// Whether it wants its answer as a stream.
    pub streamed: bool,
    /// The data-parallel rank that its client insists on.
    pub rank: Option<u32>,
    /// Key of its session, for consistent hashing.
    pub hash: Option<HashKey>,
    /// Internal fields that were taken out of the body.
    pub stripped: Vec<&'static str>,
    /// How the model is called in the answer, if the request gave it another name.
    pub renaming: Option<Arc<Renaming>>,
    /// What decides whether it becomes a prefill/decode pair, if there are any.
    // Boxed, since most routers have none and every request's future would be larger.
    pub pair: Option<Box<PairAsk>>,
    /// The body, if it goes on while it comes.
    pub upload: Option<Box<Upload>>,
    /// Number of the URL that has what it continues, and no other has.
    pub only: Option<u32>,
    /// The response that it continues.
    pub continues: Option<Box<str>>,
    /// Whether its answer may be asked for again, or continued.
    pub is_kept: bool,
}

/// What decides whether a request becomes a pair.
pub(crate) struct PairAsk {
    pub facts: PromptFacts,
    /// Bytes of its routing text; 0 if it came as ids.
    pub text_bytes: u32,
    /// Prompts in it, if they came as a list of prompts.
    pub batch: Option<u64>,
}

impl Asked {
    /// Whether another worker may have it too.
    pub(crate) fn can_be_repeated(&self) -> bool {
        !self.once_only && self.is_whole()
    }

    /// Whether all that is to be sent is still here.
    pub(crate) fn is_whole(&self) -> bool {
        self.upload.as_ref().is_none_or(|upload| upload.can_be_repeated())
    }

    /// How the length of the body is told to a worker, of a request that came with these headers.
    pub(crate) fn length(&self, headers: &HeaderMap) -> Length {
        match &self.upload {
            Some(upload) => upload.length().map_or(Length::Chunked, Length::Exact),
            None if self.body.is_empty() && !headers.contains_key(CONTENT_LENGTH) => Length::None,
            None => Length::Exact(self.body.len() as u64),
        }
    }

    /// Bytes of the prompt if it was text and they are known, else 0.
    pub(crate) fn text_bytes(&self, choice: &Choice) -> u32 {
        match (&self.tokens, &self.pair) {
            (Some(_), _) => 0,
            (None, Some(pair)) => pair.text_bytes,
            (None, None) => choice.key_len,
        }
    }
}

/// Reads the body whole, within the limit. A body that came in one piece is not copied.
pub(crate) async fn read_body(body: &mut impl Incoming, limit: usize) -> Result<Bytes, Failure> {
    let announced = body.exact().unwrap_or(0);
    let announced = usize::try_from(announced)
        .ok()
        .filter(|length| *length <= limit)
        .ok_or(Failure::BodyTooLarge { limit })?;
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while let Some(data) = poll_fn(|cx| body.poll_data(cx)).await {
        let data = data.map_err(|_| Failure::BodyCut)?;
        if first.len() + rest.len() + data.len() > limit {
            return Err(Failure::BodyTooLarge { limit });
        }
        if first.is_empty() && rest.is_empty() {
            first = data;
            continue;
        }
        if rest.is_empty() {
            rest.reserve(announced.max(first.len() + data.len()));
            rest.extend_from_slice(&std::mem::take(&mut first));
        }
        rest.extend_from_slice(&data);
    }
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}

/// What classifying looks at beside the body.
pub(crate) struct Classifier<'a> {
    pub settings: &'a RouterSettings,
    pub metrics: &'a RouterMetrics,
    /// The policies that may be asked: they say which keys are of use.
    pub policies: [PolicyKind; 2],
    /// All keys are of use, since choices are noted and other policies may be asked later.
    pub all_keys: bool,
    pub peer: SocketAddr,
    pub parts: &'a Parts,
}

impl Classifier<'_> {
    /// Of a body that carries a prompt.
    pub(crate) fn prompt(&self, shape: BodyShape, body: &Bytes) -> Result<Asked, Failure> {
        let read = match shape {
            // Never a pair: its path does not say what a leg would be.
            BodyShape::Invocation => BodyShape::of_invocation(body)
                .and_then(|shape| Ok(Asked { pair: None, ..self.read(shape, body)? })),
            _ => self.read(shape, body),
        };
        read.map_err(|error| Failure::BodyBroken(error.to_string()))
    }

    /// Of a body that any worker can take. Only a JSON object can hold something internal; what cannot be one passes.
    pub(crate) fn opaque(&self, body: &Bytes) -> Result<Asked, Failure> {
        let begins_object =
            || body.iter().find(|b| !b.is_ascii_whitespace() && !BOM.contains(b)) == Some(&b'{');
        match self.read(BodyShape::Opaque, body) {
            Ok(asked) => Ok(asked),
            Err(error) => {
                let may_be_object = match error {
                    BodyError::NotUtf8 | BodyError::WideEncoding => self.says_json(),
                    BodyError::Broken { .. } => begins_object(),
                };
                if may_be_object && !body.is_empty() {
                    return Err(Failure::BodyBroken(error.to_string()));
                }
                Ok(Asked { body: body.clone(), ..Asked::default() })
            }
        }
    }

    fn read(&self, shape: BodyShape, body: &Bytes) -> Result<Asked, BodyError> {
        SCRATCH.with_borrow_mut(|scratch| {
            let facts = Facts::read(shape, body, scratch)?;
            let (model, alias) = match &facts.model {
                ModelFact::Name(name) => match self.settings.aliases.find(name) {
                    Some((model, renaming)) => (Some(model.to_owned()), Some((name, renaming))),
                    None => (Some(name.clone().into_owned()), None),
                },
                ModelFact::Absent | ModelFact::NotString => (None, None),
            };
            let of_use = |policy| self.all_keys || self.policies.contains(&policy);
            let prefix =
                of_use(PolicyKind::CacheAware).then(|| prefix_key(&facts, model.as_deref())).flatten();
            let hash = of_use(PolicyKind::ConsistentHash).then(|| self.hash_key(&facts, body)).flatten();
            let pair = self.settings.pairs.is_some().then(|| Box::new(pair_ask(shape, &facts)));
            let (body, stripped) = self.without_internals(body, &facts);
            let may_be_kept = shape == BodyShape::Responses;
            Ok(Asked {
                rank: None,
                upload: None,
                only: None,
                continues: facts.previous_response_id.as_deref().filter(|_| may_be_kept).map(Into::into),
                is_kept: may_be_kept && facts.store != Some(false),
                body: match alias {
                    Some((name, _)) => self.settings.aliases.put_right(name, &body)?,
                    None => body,
                },
                renaming: alias.map(|(_, renaming)| Arc::clone(renaming)),
                stripped,
                model,
                is_object: true,
                once_only: may_be_kept && (facts.store == Some(true) || facts.background),
                tokens: (prefix.is_some() || pair.is_some()).then(|| id_count(&facts)).flatten(),
                streamed: facts.stream,
                prefix,
                hash,
                pair,
            })
        })
    }

    /// FastAPI takes a body without a content type for JSON too.
    fn says_json(&self) -> bool {
        let content_type = self.parts.headers.get(CONTENT_TYPE);
        content_type
            .is_none_or(|value| value.as_bytes().to_ascii_lowercase().windows(4).any(|word| word == b"json"))
    }

    fn without_internals(&self, body: &Bytes, facts: &Facts<'_>) -> (Bytes, Vec<&'static str>) {
        if facts.strips.is_empty() || self.settings.trust_client_internals {
            return (body.clone(), Vec::new());
        }
        let stripped: Vec<_> = facts.strips.iter().map(|found| found.field.as_str()).collect();
        stripped.iter().for_each(|field| self.metrics.note_stripped(field));
        (strip::cut(body, facts.strips), stripped)
    }

    fn hash_key(&self, facts: &Facts<'_>, body: &[u8]) -> Option<HashKey> {
        self.settings.hash_key.iter().find_map(|kind| {
            let header =
                |name: &str| self.parts.headers.get(name).map(|v| v.as_bytes()).filter(|v| !v.is_empty());
            match kind {
                HashKeyKind::SessionHeader => Some(HashKey::new(*kind, header("x-session-id")?)),
                HashKeyKind::UserHeader => Some(HashKey::new(*kind, header("x-user-id")?)),
                HashKeyKind::Body => Some(HashKey::new(*kind, facts.session.first()?.as_bytes())),
                HashKeyKind::Authorization => Some(HashKey::new(*kind, header(AUTHORIZATION.as_str())?)),
                HashKeyKind::ClientIp => Some(HashKey::new(*kind, self.client_ip().as_bytes())),
                HashKeyKind::BodyHash => Some(HashKey::new(*kind, body)),
            }
        })
    }

    fn client_ip(&self) -> String {
        let forwarded = || {
            let value = self.parts.headers.get("x-forwarded-for")?.to_str().ok()?;
            Some(value.split(',').next()?.trim().to_owned())
        };
        let trusted = self.settings.trust_forwarded.then(forwarded).flatten().filter(|ip| !ip.is_empty());
        trusted.unwrap_or_else(|| self.peer.ip().to_canonical().to_string())
    }
}

fn pair_ask(shape: BodyShape, facts: &Facts<'_>) -> PairAsk {
    let bytes = match &facts.prompt {
        Prompt::Text(parts) => parts.len(),
        Prompt::Ids(_) | Prompt::None => 0,
    };
    PairAsk {
        facts: PromptFacts {
            endpoint: Endpoint::of(shape),
            n: facts.n,
            best_of: facts.best_of,
            use_beam_search: facts.use_beam_search,
            has_prompt_logprobs: facts.has_prompt_logprobs,
            has_prompt_embeds: facts.has_prompt_embeds,
            has_previous_response: facts.previous_response_id.is_some(),
            background: facts.background,
            prompts: facts.batch.unwrap_or(1),
        },
        text_bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
        batch: facts.batch,
    }
}

/// Tokens of a prompt of ids.
fn id_count(facts: &Facts<'_>) -> Option<u64> {
    match &facts.prompt {
        Prompt::Ids(parts) => Some(parts.id_count() as u64),
        Prompt::None | Prompt::Text(_) => None,
    }
}

/// The key of a prompt. Requests that an engine would not let share blocks never share a key.
fn prefix_key(facts: &Facts<'_>, model: Option<&str>) -> Option<PrefixKey> {
    let (parts, kind) = match &facts.prompt {
        Prompt::None => return None,
        Prompt::Text(parts) => (parts, 0),
        Prompt::Ids(parts) => (parts, 1),
    };
    let mut namespace = xxh3_64_with_seed(model.unwrap_or_default().as_bytes(), kind);
    for apart in [facts.cache_salt, facts.lora].into_iter().flatten() {
        namespace = xxh3_64_with_seed(apart, namespace);
    }
    let mut key = PrefixKey::with_room_for(parts.len());
    let mut builder = key.builder(namespace);
    for part in parts.iter() {
        builder.push(part);
    }
    builder.finish();
    (!key.is_empty()).then_some(key)
}

//! Which top-level members are known, and which of them carry the prompt on which kind of route; must not read values.

use crate::walk::{self, BodyError, KeyBuffer, Object};

/// What kind of body a route takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BodyShape {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/chat/completions/tokens`
    ChatTokens,
    /// `/v1/chat/completions/batch`
    ChatBatch,
    /// `/cohere/v2/chat`
    CohereChat,
    /// `/v1/completions`
    Completions,
    /// `/v1/responses`
    Responses,
    /// `/v1/messages`
    Messages,
    /// `/inference/v1/generate`
    Generate,
    /// `/generate`
    SglGenerate,
    /// `/v1/embeddings`
    Embeddings,
    /// `/v2/embed`
    CohereEmbed,
    /// `/pooling`
    Pooling,
    /// `/classify`
    Classify,
    /// `/score`
    Score,
    /// `/rerank`
    Rerank,
    /// `/invocations`: one of the others, see [`BodyShape::of_invocation`].
    Invocation,
    /// No prompt to route by; only model, session keys and internal fields are read.
    Opaque,
}

/// A known top-level member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Field {
    Model,
    Stream,
    N,
    BestOf,
    UseBeamSearch,
    Echo,
    Logprobs,
    PromptLogprobs,
    PromptEmbeds,
    PreviousResponseId,
    Store,
    Background,
    LoraPath,
    CacheSalt,
    MaxTokens,
    MaxCompletionTokens,
    MaxOutputTokens,
    User,
    SessionId,
    UserId,
    SessionParams,
    VllmXargs,
    SamplingParams,
    PromptTokenIds,
    TokenIds,
    Tokens,
    InputIds,
    Prompt,
    Messages,
    Tools,
    Documents,
    ChatTemplate,
    ChatTemplateKwargs,
    ReasoningEffort,
    AddGenerationPrompt,
    ContinueFinalMessage,
    Instructions,
    Input,
    System,
    Text,
    Query,
    Queries,
    Items,
    Data1,
    Data2,
    Text1,
    Text2,
    Texts,
    Inputs,
}

/// How a member of the prompt is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    /// As it is written.
    Raw,
    /// Text, lists of text, token ids or lists of them.
    Input,
    /// As `Input`, but a text stands for one message of the user, and a list is a list of messages.
    Items,
    /// Content of a message: text or a list of parts.
    Content,
    /// A list of messages, or a list of such lists.
    Messages,
    /// Token ids; if they are there, nothing else is the prompt.
    Ids,
}

/// One member of the prompt.
pub(crate) type Slot = (Field, Reading);

impl Field {
    pub(crate) const COUNT: usize = Self::Inputs as usize + 1;

    /// The field with this unescaped name.
    #[inline]
    pub(crate) fn from_name(name: &[u8]) -> Option<Self> {
        // By length first: a chain of comparisons over all names would cost more than the rest of a small body.
        match name.len() {
            ..=6 => Self::short(name),
            7..=11 => Self::middle(name),
            _ => Self::long(name),
        }
    }

    fn short(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"n" => Self::N,
            b"echo" => Self::Echo,
            b"user" => Self::User,
            b"text" => Self::Text,
            b"model" => Self::Model,
            b"store" => Self::Store,
            b"tools" => Self::Tools,
            b"input" => Self::Input,
            b"query" => Self::Query,
            b"texts" => Self::Texts,
            b"inputs" => Self::Inputs,
            b"items" => Self::Items,
            b"stream" => Self::Stream,
            b"prompt" => Self::Prompt,
            b"tokens" => Self::Tokens,
            b"system" => Self::System,
            b"data_1" => Self::Data1,
            b"data_2" => Self::Data2,
            b"text_1" => Self::Text1,
            b"text_2" => Self::Text2,
            _ => return None,
        })
    }

    fn middle(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"best_of" => Self::BestOf,
            b"user_id" => Self::UserId,
            b"queries" => Self::Queries,
            b"logprobs" => Self::Logprobs,
            b"messages" => Self::Messages,
            b"documents" => Self::Documents,
            b"lora_path" => Self::LoraPath,
            b"token_ids" => Self::TokenIds,
            b"input_ids" => Self::InputIds,
            b"background" => Self::Background,
            b"cache_salt" => Self::CacheSalt,
            b"max_tokens" => Self::MaxTokens,
            b"session_id" => Self::SessionId,
            b"vllm_xargs" => Self::VllmXargs,
            _ => return None,
        })
    }

    fn long(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"instructions" => Self::Instructions,
            b"chat_template" => Self::ChatTemplate,
            b"prompt_embeds" => Self::PromptEmbeds,
            b"session_params" => Self::SessionParams,
            b"sampling_params" => Self::SamplingParams,
            b"use_beam_search" => Self::UseBeamSearch,
            b"prompt_logprobs" => Self::PromptLogprobs,
            b"prompt_token_ids" => Self::PromptTokenIds,
            b"reasoning_effort" => Self::ReasoningEffort,
            b"max_output_tokens" => Self::MaxOutputTokens,
            b"chat_template_kwargs" => Self::ChatTemplateKwargs,
            b"previous_response_id" => Self::PreviousResponseId,
            b"max_completion_tokens" => Self::MaxCompletionTokens,
            b"add_generation_prompt" => Self::AddGenerationPrompt,
            b"continue_final_message" => Self::ContinueFinalMessage,
            _ => return None,
        })
    }
}

impl BodyShape {
    /// The kind of body that an invocation is, as vLLM tells it: by the members it has, not by its path.
    ///
    /// # Errors
    /// [`BodyError`] if the members cannot be walked.
    pub fn of_invocation(body: &[u8]) -> Result<Self, BodyError> {
        let mut object = Object::open(body, walk::document(body)?)?;
        let mut has = [false; Field::COUNT];
        let mut buffer = KeyBuffer::default();
        while let Some(key) = object.next_key()? {
            if let Some(field) = Field::from_name(key.name(body, &mut buffer)) {
                has[field as usize] = true;
            }
            object.skip_value()?;
        }
        let has = |fields: &[Field]| fields.iter().any(|field| has[*field as usize]);
        use Field as F;
        Ok(if has(&[F::Messages]) {
            Self::Chat
        } else if has(&[F::Prompt]) {
            Self::Completions
        } else if has(&[F::Input]) {
            Self::Embeddings
        } else if has(&[F::Query]) {
            Self::Rerank
        } else if has(&[F::Queries, F::Data1, F::Text1]) {
            Self::Score
        } else {
            Self::Opaque
        })
    }

    /// The members that make up the prompt, in the order in which they take part in it: ids, then what a chat template
    /// puts in front, then what grows from turn to turn, then what only changes the end.
    pub(crate) const fn slots(self) -> &'static [Slot] {
        use Field as F;
        use Reading as R;
        const IDS: Slot = (F::PromptTokenIds, R::Ids);
        const ALSO_IDS: Slot = (F::TokenIds, R::Ids);
        match self {
            Self::Chat | Self::ChatBatch | Self::CohereChat => &CHAT,
            Self::ChatTokens => &CHAT_TOKENS,
            Self::Completions => &[IDS, ALSO_IDS, (F::Prompt, R::Input)],
            Self::Responses => {
                &[IDS, ALSO_IDS, (F::Tools, R::Raw), (F::Instructions, R::Content), (F::Input, R::Items)]
            }
            Self::Messages => {
                &[IDS, ALSO_IDS, (F::Tools, R::Raw), (F::System, R::Content), (F::Messages, R::Messages)]
            }
            Self::Generate => &[IDS, ALSO_IDS],
            Self::SglGenerate => {
                &[IDS, ALSO_IDS, (F::InputIds, R::Ids), (F::Text, R::Input), (F::Prompt, R::Input)]
            }
            Self::Embeddings | Self::Pooling | Self::Classify => {
                &[IDS, ALSO_IDS, (F::Input, R::Input), (F::Messages, R::Messages)]
            }
            Self::Score => &SCORE,
            Self::Rerank => &[IDS, ALSO_IDS, (F::Query, R::Input), (F::Documents, R::Input)],
            Self::CohereEmbed => &[(F::Texts, R::Input), (F::Inputs, R::Raw)],
            Self::Invocation | Self::Opaque => &[],
        }
    }
}

/// Slots of a prompt at most.
pub(crate) const MAX_SLOTS: usize = CHAT_TOKENS.len();

const CHAT: [Slot; 10] = [
    (Field::PromptTokenIds, Reading::Ids),
    (Field::TokenIds, Reading::Ids),
    (Field::Tools, Reading::Raw),
    (Field::Documents, Reading::Raw),
    (Field::ChatTemplate, Reading::Raw),
    (Field::ChatTemplateKwargs, Reading::Raw),
    (Field::ReasoningEffort, Reading::Raw),
    (Field::Messages, Reading::Messages),
    (Field::AddGenerationPrompt, Reading::Raw),
    (Field::ContinueFinalMessage, Reading::Raw),
];

const CHAT_TOKENS: [Slot; 11] = [
    CHAT[0],
    CHAT[1],
    (Field::Tokens, Reading::Ids),
    CHAT[2],
    CHAT[3],
    CHAT[4],
    CHAT[5],
    CHAT[6],
    CHAT[7],
    CHAT[8],
    CHAT[9],
];

const SCORE: [Slot; 10] = [
    (Field::PromptTokenIds, Reading::Ids),
    (Field::TokenIds, Reading::Ids),
    (Field::Queries, Reading::Input),
    (Field::Query, Reading::Input),
    (Field::Data1, Reading::Input),
    (Field::Text1, Reading::Input),
    (Field::Documents, Reading::Input),
    (Field::Items, Reading::Input),
    (Field::Data2, Reading::Input),
    (Field::Text2, Reading::Input),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invocation_is_told_by_its_members() {
        for (body, shape) in [
            (r#"{"model":"m","messages":[]}"#, BodyShape::Chat),
            (r#"{"\u0070rompt":"x","stream":true}"#, BodyShape::Completions),
            (r#"{"input":["a"]}"#, BodyShape::Embeddings),
            (r#"{"documents":["a"],"query":"b"}"#, BodyShape::Rerank),
            (r#"{"text_1":"a","text_2":"b"}"#, BodyShape::Score),
            (r#"{"queries":["a"],"items":["b"]}"#, BodyShape::Score),
            (r#"{"nested":{"messages":[]}}"#, BodyShape::Opaque),
            ("{}", BodyShape::Opaque),
        ] {
            assert_eq!(BodyShape::of_invocation(body.as_bytes()), Ok(shape), "{body}");
        }
        assert!(BodyShape::of_invocation(b"[]").is_err());
    }
}

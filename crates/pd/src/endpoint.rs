//! The APIs whose requests can be pairs. Reads nothing.

use forebay_openai::BodyShape;

/// An API that generates tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `/v1/chat/completions`, and the same with token ids.
    Chat,
    /// `/v1/completions`
    Completions,
    /// `/v1/responses`
    Responses,
    /// `/v1/messages`
    Messages,
    /// `/inference/v1/generate`
    Generate,
}

impl Endpoint {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Chat, Self::Completions, Self::Responses, Self::Messages, Self::Generate];

    /// The API of a kind of body; `None` if its requests are never pairs.
    pub const fn of(shape: BodyShape) -> Option<Self> {
        match shape {
            BodyShape::Chat | BodyShape::ChatTokens => Some(Self::Chat),
            BodyShape::Completions => Some(Self::Completions),
            BodyShape::Responses => Some(Self::Responses),
            BodyShape::Messages => Some(Self::Messages),
            BodyShape::Generate => Some(Self::Generate),
            // A batch is refused with ids; of the others an engine's answer carries nothing to hand over.
            BodyShape::ChatBatch
            | BodyShape::CohereChat
            | BodyShape::CohereEmbed
            | BodyShape::Invocation
            | BodyShape::SglGenerate
            | BodyShape::Embeddings
            | BodyShape::Pooling
            | BodyShape::Classify
            | BodyShape::Score
            | BodyShape::Rerank
            | BodyShape::Opaque => None,
        }
    }

    /// The engine's own name of a request that came with this id in its head, less the part that it draws itself.
    pub(crate) fn engine_id(self, id: &str) -> String {
        match self {
            Self::Chat | Self::Messages => format!("chatcmpl-{id}"),
            Self::Completions => format!("cmpl-{id}-0"),
            Self::Generate => format!("generate-tokens-{id}"),
            // Its id is a member of the body.
            Self::Responses => id.to_owned(),
        }
    }
}

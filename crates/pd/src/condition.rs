//! Whether a request becomes a pair, and if not, why: some cannot be handed over, and for short or mostly cached prompts a
//! decode worker alone is faster.

use crate::connector::Connector;
use crate::endpoint::Endpoint;

/// What is asked of a request before it becomes a pair.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Conditions {
    /// Tokens of the prompt from which on it is paired; 0 pairs always.
    pub threshold_tokens: u64,
    /// Tokens that the decode worker does not hold, from which on it is paired; 0 does not ask.
    pub uncached_threshold_tokens: u64,
}

/// What matters of a request here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptFacts {
    /// Its API; `None` if requests of it are never pairs.
    pub endpoint: Option<Endpoint>,
    /// Answers per prompt.
    pub n: u64,
    /// Candidates per prompt.
    pub best_of: u64,
    /// Beam search is asked for.
    pub use_beam_search: bool,
    /// Log probabilities of the prompt are asked for.
    pub has_prompt_logprobs: bool,
    /// Its prompt came as embeddings.
    pub has_prompt_embeds: bool,
    /// It continues a response that one worker keeps.
    pub has_previous_response: bool,
    /// It is answered before it is worked on.
    pub background: bool,
    /// Prompts in it.
    pub prompts: u64,
}

/// Why a request goes to one worker alone: a decode worker, unless something else is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bypass {
    /// Its route has nothing to hand over.
    Route,
    /// It wants several answers, which would read the same blocks, and the first reader frees them.
    Choices,
    /// Beam search.
    BeamSearch,
    /// The prompt has to be computed where its log probabilities are asked for.
    PromptLogprobs,
    /// What came as embeddings has no token ids, which connectors go by: some engines die of that.
    PromptEmbeds,
    /// It has several prompts.
    List,
    /// The worker that keeps the response it continues has to know it.
    PreviousResponse,
    /// Its connection does not last as long as its work.
    Background,
    /// Its prompt is short.
    Short,
    /// The decode worker holds most of the prompt.
    Cached,
    /// It has tools, or calls of them, which are read out of a whole answer.
    Tools,
    /// What is thought is told apart from what is said in a whole answer.
    Reasoning,
    /// It asks for something that depends on all tokens of the answer.
    Options,
    /// It is for one token, which a prefill worker makes by itself.
    OneToken,
}

impl Bypass {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::Route,
        Self::Choices,
        Self::BeamSearch,
        Self::PromptLogprobs,
        Self::PromptEmbeds,
        Self::List,
        Self::PreviousResponse,
        Self::Background,
        Self::Short,
        Self::Cached,
        Self::Tools,
        Self::Reasoning,
        Self::Options,
        Self::OneToken,
    ];

    /// Name in metrics and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Route => "route",
            Self::Choices => "choices",
            Self::BeamSearch => "beam_search",
            Self::PromptLogprobs => "prompt_logprobs",
            Self::PromptEmbeds => "prompt_embeds",
            Self::List => "list",
            Self::PreviousResponse => "previous_response",
            Self::Background => "background",
            Self::Short => "short",
            Self::Cached => "cached",
            Self::Tools => "tools",
            Self::Reasoning => "reasoning",
            Self::Options => "options",
            Self::OneToken => "one_token",
        }
    }

    /// Why a request cannot be a pair; `None` if it can.
    pub fn by_nature(facts: &PromptFacts, connector: Connector) -> Option<Self> {
        if facts.endpoint.is_none() {
            return Some(Self::Route);
        }
        let found = [
            (facts.n > 1 || facts.best_of > 1, Self::Choices),
            (facts.use_beam_search, Self::BeamSearch),
            (facts.has_prompt_logprobs, Self::PromptLogprobs),
            (facts.has_prompt_embeds, Self::PromptEmbeds),
            (facts.prompts > 1 && !connector.takes_batches(), Self::List),
            (facts.has_previous_response, Self::PreviousResponse),
            (facts.background, Self::Background),
        ];
        found.into_iter().find_map(|(holds, why)| holds.then_some(why))
    }
}

impl Conditions {
    /// Whether a prompt of so many tokens is too short.
    pub fn by_length(&self, tokens: u64) -> Option<Bypass> {
        (tokens < self.threshold_tokens).then_some(Bypass::Short)
    }

    /// Whether the chosen decode worker has to compute so little that it does it itself.
    pub fn by_cache(&self, uncached_tokens: u64) -> Option<Bypass> {
        (uncached_tokens < self.uncached_threshold_tokens).then_some(Bypass::Cached)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: PromptFacts = PromptFacts {
        endpoint: Some(Endpoint::Chat),
        n: 1,
        best_of: 1,
        use_beam_search: false,
        has_prompt_logprobs: false,
        has_prompt_embeds: false,
        has_previous_response: false,
        background: false,
        prompts: 1,
    };

    #[test]
    fn what_cannot_be_handed_over_is_told_apart() {
        let cases = [
            (PLAIN, None),
            (PromptFacts { endpoint: None, ..PLAIN }, Some(Bypass::Route)),
            (PromptFacts { n: 2, ..PLAIN }, Some(Bypass::Choices)),
            (PromptFacts { best_of: 2, ..PLAIN }, Some(Bypass::Choices)),
            (PromptFacts { use_beam_search: true, ..PLAIN }, Some(Bypass::BeamSearch)),
            (PromptFacts { has_prompt_logprobs: true, ..PLAIN }, Some(Bypass::PromptLogprobs)),
            (PromptFacts { has_prompt_embeds: true, ..PLAIN }, Some(Bypass::PromptEmbeds)),
            (PromptFacts { prompts: 2, ..PLAIN }, Some(Bypass::List)),
            (PromptFacts { has_previous_response: true, ..PLAIN }, Some(Bypass::PreviousResponse)),
            (PromptFacts { background: true, ..PLAIN }, Some(Bypass::Background)),
        ];
        for (facts, wanted) in cases {
            assert_eq!(Bypass::by_nature(&facts, Connector::Nixl), wanted);
        }
        let batch = PromptFacts { prompts: 8, ..PLAIN };
        assert_eq!(Bypass::by_nature(&batch, Connector::Bootstrap), None);
    }

    #[test]
    fn at_the_threshold_it_is_a_pair_and_one_below_it_is_not() {
        let conditions = Conditions { threshold_tokens: 512, uncached_threshold_tokens: 100 };
        assert_eq!((conditions.by_length(511), conditions.by_length(512)), (Some(Bypass::Short), None));
        assert_eq!((conditions.by_cache(99), conditions.by_cache(100)), (Some(Bypass::Cached), None));
        let always = Conditions::default();
        assert_eq!((always.by_length(0), always.by_cache(0)), (None, None));
    }
}

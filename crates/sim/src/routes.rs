//! Which path is which route of a vLLM worker, and with which method. It answers nothing.

use crate::http::Method;

/// What a path of the worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Route {
    Generating(Generating),
    Pooling(Pooling),
    Text(TextRoute),
    Info(Info),
    /// Forms with sound.
    Audio,
    Stored,
    CancelStored,
    Control(ControlRoute),
}

/// Routes that carry a prompt and produce tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Generating {
    Chat,
    /// Chat with a prompt in token ids.
    ChatTokens,
    Completions,
    Responses,
    Messages,
    Tokens,
    /// The demo server's route.
    Plain,
}

/// Routes that carry a prompt and produce vectors or scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Pooling {
    Embeddings,
    Raw,
    Classify,
    Score,
    Rerank,
}

/// Routes that turn text into tokens and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TextRoute {
    Tokenize,
    Detokenize,
    CountTokens,
    RenderChat,
    RenderCompletions,
    RenderMessages,
    RenderResponses,
}

/// Routes that only tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Info {
    Health,
    Version,
    Models,
    Metrics,
    Load,
    KvEventSources,
    Config,
    WorldSize,
    IsSleeping,
    IsPaused,
}

/// Routes that change the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ControlRoute {
    ResetPrefixCache,
    ResetMmCache,
    ResetEncoderCache,
    Sleep,
    WakeUp,
    Pause,
    Resume,
    CollectiveRpc,
    UpdateWeights,
    Profile,
    LoadLora,
    UnloadLora,
    AbortScaleOut,
    Abort,
}

/// What a worker has under a path: a route and the methods it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) route: Route,
    pub(crate) allowed: &'static [Method],
    pub(crate) gate: Gated,
}

/// Which switch of the worker must be on for a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gated {
    Always,
    /// 404 without development mode.
    DevMode,
    /// 403 without scale-out endpoints.
    ScaleOut,
}

const GET: &[Method] = &[Method::Get];
const POST: &[Method] = &[Method::Post];
const GET_POST: &[Method] = &[Method::Get, Method::Post];
const GET_DELETE: &[Method] = &[Method::Get, Method::Delete];

/// The route of a path without query, or `None` where the worker answers 404.
pub(crate) fn find(path: &[u8]) -> Option<Found> {
    let found = |route, allowed, gate| Some(Found { route, allowed, gate });
    generating(path)
        .map(|(route, gate)| Found { route, allowed: POST, gate })
        .or_else(|| pooling(path).and_then(|kind| found(Route::Pooling(kind), POST, Gated::Always)))
        .or_else(|| text(path).map(|(kind, gate)| Found { route: Route::Text(kind), allowed: POST, gate }))
        .or_else(|| info(path))
        .or_else(|| {
            control(path).map(|(kind, gate)| Found { route: Route::Control(kind), allowed: POST, gate })
        })
        .or_else(|| audio(path))
        .or_else(|| stored(path))
}

fn generating(path: &[u8]) -> Option<(Route, Gated)> {
    let kind = match path {
        b"/v1/chat/completions" => Generating::Chat,
        b"/v1/chat/completions/tokens" => Generating::ChatTokens,
        b"/v1/completions" => Generating::Completions,
        b"/v1/responses" => Generating::Responses,
        b"/v1/messages" => Generating::Messages,
        b"/inference/v1/generate" => return Some((Route::Generating(Generating::Tokens), Gated::ScaleOut)),
        b"/generate" => Generating::Plain,
        _ => return None,
    };
    Some((Route::Generating(kind), Gated::Always))
}

fn pooling(path: &[u8]) -> Option<Pooling> {
    Some(match path {
        b"/v1/embeddings" => Pooling::Embeddings,
        b"/pooling" => Pooling::Raw,
        b"/classify" => Pooling::Classify,
        b"/score" | b"/v1/score" => Pooling::Score,
        b"/rerank" | b"/v1/rerank" | b"/v2/rerank" => Pooling::Rerank,
        _ => return None,
    })
}

fn text(path: &[u8]) -> Option<(TextRoute, Gated)> {
    Some(match path {
        b"/tokenize" => (TextRoute::Tokenize, Gated::Always),
        b"/detokenize" => (TextRoute::Detokenize, Gated::Always),
        b"/v1/messages/count_tokens" => (TextRoute::CountTokens, Gated::Always),
        b"/v1/chat/completions/render" => (TextRoute::RenderChat, Gated::ScaleOut),
        b"/v1/completions/render" => (TextRoute::RenderCompletions, Gated::ScaleOut),
        b"/v1/messages/render" => (TextRoute::RenderMessages, Gated::ScaleOut),
        b"/v1/responses/render" => (TextRoute::RenderResponses, Gated::ScaleOut),
        _ => return None,
    })
}

fn info(path: &[u8]) -> Option<Found> {
    let (kind, allowed, gate) = match path {
        b"/health" => (Info::Health, GET, Gated::Always),
        b"/ping" => (Info::Health, GET_POST, Gated::Always),
        b"/version" => (Info::Version, GET, Gated::Always),
        b"/v1/models" => (Info::Models, GET, Gated::Always),
        b"/metrics" => (Info::Metrics, GET, Gated::Always),
        b"/load" => (Info::Load, GET, Gated::Always),
        b"/kv_event_sources" => (Info::KvEventSources, GET, Gated::Always),
        b"/server_info" => (Info::Config, GET, Gated::DevMode),
        b"/get_world_size" => (Info::WorldSize, GET, Gated::DevMode),
        b"/is_sleeping" => (Info::IsSleeping, GET, Gated::DevMode),
        b"/is_paused" => (Info::IsPaused, GET, Gated::DevMode),
        _ => return None,
    };
    Some(Found { route: Route::Info(kind), allowed, gate })
}

fn control(path: &[u8]) -> Option<(ControlRoute, Gated)> {
    use ControlRoute as C;
    Some(match path {
        b"/start_profile" | b"/stop_profile" => (C::Profile, Gated::Always),
        b"/v1/load_lora_adapter" => (C::LoadLora, Gated::Always),
        b"/v1/unload_lora_adapter" => (C::UnloadLora, Gated::Always),
        b"/inference/v1/abort_requests" => (C::AbortScaleOut, Gated::ScaleOut),
        b"/abort_requests" => (C::Abort, Gated::DevMode),
        b"/reset_prefix_cache" => (C::ResetPrefixCache, Gated::DevMode),
        b"/reset_mm_cache" => (C::ResetMmCache, Gated::DevMode),
        b"/reset_encoder_cache" => (C::ResetEncoderCache, Gated::DevMode),
        b"/sleep" => (C::Sleep, Gated::DevMode),
        b"/wake_up" => (C::WakeUp, Gated::DevMode),
        b"/pause" => (C::Pause, Gated::DevMode),
        b"/resume" => (C::Resume, Gated::DevMode),
        b"/collective_rpc" => (C::CollectiveRpc, Gated::DevMode),
        b"/update_weights"
        | b"/init_weight_transfer_engine"
        | b"/shutdown_weight_transfer_engine"
        | b"/start_weight_update"
        | b"/start_draft_weight_update"
        | b"/finish_weight_update"
        | b"/update_weight_version"
        | b"/release_kv_cache_memory" => (C::UpdateWeights, Gated::DevMode),
        _ => return None,
    })
}

fn audio(path: &[u8]) -> Option<Found> {
    let is_audio = matches!(path, b"/v1/audio/transcriptions" | b"/v1/audio/translations");
    is_audio.then_some(Found { route: Route::Audio, allowed: POST, gate: Gated::Always })
}

fn stored(path: &[u8]) -> Option<Found> {
    let rest = path.strip_prefix(b"/v1/responses/")?;
    let (route, allowed) = match rest.strip_suffix(b"/cancel") {
        Some(id) if !id.is_empty() => (Route::CancelStored, POST),
        _ if rest.is_empty() || rest.contains(&b'/') => return None,
        _ => (Route::Stored, GET_DELETE),
    };
    Some(Found { route, allowed, gate: Gated::Always })
}

impl Route {
    /// Whether it carries a prompt; faults and gates leave the other routes alone unless told otherwise.
    pub(crate) fn is_inference(self) -> bool {
        matches!(self, Self::Generating(_) | Self::Pooling(_))
    }

    /// Whether it takes a JSON body and refuses another content type.
    pub(crate) fn needs_json(self) -> bool {
        self.is_inference() || matches!(self, Self::Text(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_with_an_id_do_not_swallow_their_neighbours() {
        let route = |path: &str| find(path.as_bytes()).map(|found| found.route);
        assert_eq!(route("/v1/responses"), Some(Route::Generating(Generating::Responses)));
        assert_eq!(route("/v1/responses/resp_1"), Some(Route::Stored));
        assert_eq!(route("/v1/responses/resp_1/cancel"), Some(Route::CancelStored));
        assert_eq!(route("/v1/responses/render"), Some(Route::Text(TextRoute::RenderResponses)));
        assert_eq!(route("/v1/responses/a/b"), None);
        assert_eq!(route("/v1/responses/"), None);
        assert_eq!(route("/v1/chat/completions/"), None);
    }
}

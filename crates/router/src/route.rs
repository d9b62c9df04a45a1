//! The one table that says what a method and a path are, and nothing about how they are served.

use std::borrow::Cow;
use std::sync::LazyLock;

use forebay_openai::{BodyShape, Dialect};
use forebay_workers::{By, Rest};
use http::Method;
use percent_encoding::percent_decode_str;

use self::Class::{Admin, Control, Own, PickOne, Routable, Stored, Tunnel, Upload};

/// What is done with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Carries a prompt: the body is read and the policy chooses by it.
    Routable(BodyShape),
    /// Any worker of the model will do.
    PickOne,
    /// A form with a file: any worker of the model that it names, and the body goes on while it comes.
    Upload,
    /// A connection that is to switch to another protocol, with any worker of the model that the query names.
    Tunnel,
    /// About a response that one worker keeps: whoever knows it answers.
    Stored,
    /// Goes to every worker, or to the one addressed; the answers are merged.
    Control(Action),
    /// Answered by the router itself.
    Own(Page),
    /// The admin API and `/metrics`, answered by whoever holds the registry and the writer.
    Admin {
        /// Whether anybody may.
        open: bool,
    },
    /// Not to be had here.
    Refused(Refusal),
}

impl Class {
    /// Whether a request of this class belongs to a trial: a worker was to answer it, or nobody knows who.
    pub(crate) fn counts(self) -> bool {
        match self {
            Self::Refused(_) => true,
            Self::Control(_) | Self::Own(_) | Self::Admin { .. } => false,
            Self::Routable(_) | Self::PickOne | Self::Upload | Self::Tunnel | Self::Stored => true,
        }
    }

    /// Whether workers are asked.
    pub(crate) fn is_for_workers(self) -> bool {
        match self {
            Self::Routable(_)
            | Self::PickOne
            | Self::Upload
            | Self::Tunnel
            | Self::Stored
            | Self::Control(_) => true,
            Self::Own(_) | Self::Admin { .. } | Self::Refused(_) => false,
        }
    }

    /// Whether its connection may switch to another protocol.
    pub(crate) fn may_switch(self) -> bool {
        matches!(self, Self::PickOne | Self::Tunnel)
    }
}

/// What a worker-wide request does to the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Action {
    /// Who may: anybody, or whoever has the admin right.
    pub admin: bool,
    /// A success leaves the worker without the prefixes it held.
    pub empties_cache: bool,
    /// A success may change what it serves.
    pub changes_models: bool,
    /// Meant for one worker, which must be named.
    pub addressed: bool,
    /// A success makes it rest, or ends its rest.
    pub rest: Option<(Rest, bool)>,
}

impl Action {
    /// What leaves a worker without the prefixes it held.
    pub(crate) const EMPTIES: Self = EMPTIES;
}

/// Pages of the router's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Page {
    /// `/health`, `/liveness`, `/ping`.
    Alive,
    /// `/readiness`.
    Ready,
    /// `/v1/models`.
    Models,
    /// `/version`.
    Version,
    /// What a path takes, to whoever asks for just that.
    Options(&'static str),
}

/// Why there is nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// No such path.
    NotFound,
    /// The path exists for these methods.
    Method(&'static str),
}

/// A row of the table, as found for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// What is done with it.
    pub class: Class,
    /// Name in metrics and logs: bounded, whatever paths clients invent.
    pub template: &'static str,
    /// How its errors look.
    pub dialect: Dialect,
    /// Small number of the template.
    pub id: u16,
}

const READ: Action =
    Action { admin: true, empties_cache: false, changes_models: false, addressed: false, rest: None };
const OPEN: Action = Action { admin: false, ..READ };
const EMPTIES: Action = Action { empties_cache: true, ..READ };
const MODELS: Action = Action { changes_models: true, ..EMPTIES };
const SLEEP: Action = Action { rest: Some((Rest::Asleep, true)), ..EMPTIES };
const WAKE: Action = Action { rest: Some((Rest::Asleep, false)), ..READ };
const STOP: Action = Action { rest: Some((Rest::Stopped, true)), ..EMPTIES };
const RESUME: Action = Action { rest: Some((Rest::Stopped, false)), ..READ };
const ONE: Action = Action { addressed: true, ..READ };

const GET: &str = "GET, HEAD";
const POST: &str = "POST";
const BOTH: &str = "GET, HEAD, POST";
const KEPT: &str = "GET, HEAD, POST, DELETE";
const ANY: &str = "";

/// Methods, path, class. Paths below a `/*` match by prefix.
#[rustfmt::skip]
const TABLE: &[(&str, &str, Class)] = &[
    (POST, "/v1/chat/completions",        Routable(BodyShape::Chat)),
    (POST, "/v1/chat/completions/tokens", Routable(BodyShape::ChatTokens)),
    (POST, "/v1/chat/completions/batch",  Routable(BodyShape::ChatBatch)),
    (POST, "/v1/completions",             Routable(BodyShape::Completions)),
    (POST, "/v1/responses",               Routable(BodyShape::Responses)),
    (POST, "/v1/messages",                Routable(BodyShape::Messages)),
    (POST, "/inference/v1/generate",      Routable(BodyShape::Generate)),
    (POST, "/generate",                   Routable(BodyShape::SglGenerate)),
    (POST, "/cohere/v2/chat",             Routable(BodyShape::CohereChat)),
    (POST, "/invocations",                Routable(BodyShape::Invocation)),
    (POST, "/v1/embeddings",              Routable(BodyShape::Embeddings)),
    (POST, "/embeddings",                 Routable(BodyShape::Embeddings)),
    (POST, "/v2/embed",                   Routable(BodyShape::CohereEmbed)),
    (POST, "/pooling",                    Routable(BodyShape::Pooling)),
    (POST, "/v1/pooling",                 Routable(BodyShape::Pooling)),
    (POST, "/classify",                   Routable(BodyShape::Classify)),
    (POST, "/v1/classify",                Routable(BodyShape::Classify)),
    (POST, "/score",                      Routable(BodyShape::Score)),
    (POST, "/v1/score",                   Routable(BodyShape::Score)),
    (POST, "/rerank",                     Routable(BodyShape::Rerank)),
    (POST, "/v1/rerank",                  Routable(BodyShape::Rerank)),
    (POST, "/v2/rerank",                  Routable(BodyShape::Rerank)),

    (POST, "/tokenize",                   PickOne),
    (POST, "/detokenize",                 PickOne),
    (GET,  "/tokenizer_info",             PickOne),
    (POST, "/v1/messages/count_tokens",   PickOne),
    (POST, "/v1/chat/completions/render", PickOne),
    (POST, "/v1/completions/render",      PickOne),
    (POST, "/v1/messages/render",         PickOne),
    (POST, "/v1/responses/render",        PickOne),
    (POST, "/cohere/v2/chat/render",      PickOne),
    (POST, "/v1/chat/completions/derender", PickOne),
    (POST, "/v1/completions/derender",    PickOne),
    (POST, "/v1/systemone",               PickOne),
    (POST, "/v1/decisions",               PickOne),
    (POST, "/generative_scoring",         PickOne),

    (POST, "/v1/audio/transcriptions",    Upload),
    (POST, "/v1/audio/translations",      Upload),
    (GET,  "/v1/realtime",                Tunnel),
    (KEPT, "/v1/responses/*",             Stored),

    (POST, "/reset_prefix_cache",         Control(EMPTIES)),
    (POST, "/reset_mm_cache",             Control(READ)),
    (POST, "/reset_encoder_cache",        Control(READ)),
    (POST, "/release_kv_cache_memory",    Control(EMPTIES)),
    (POST, "/sleep",                      Control(SLEEP)),
    (POST, "/wake_up",                    Control(WAKE)),
    (GET,  "/is_sleeping",                Control(READ)),
    (POST, "/pause",                      Control(STOP)),
    (POST, "/resume",                     Control(RESUME)),
    (GET,  "/is_paused",                  Control(READ)),
    (POST, "/collective_rpc",             Control(MODELS)),
    (POST, "/init_weight_transfer_engine",     Control(READ)),
    (POST, "/shutdown_weight_transfer_engine", Control(READ)),
    (POST, "/start_weight_update",        Control(READ)),
    (POST, "/start_draft_weight_update",  Control(READ)),
    (POST, "/update_weights",             Control(EMPTIES)),
    (POST, "/finish_weight_update",       Control(EMPTIES)),
    (POST, "/update_weight_version",      Control(EMPTIES)),
    (GET,  "/weight_info",                Control(READ)),
    (GET,  "/weight_checker",             Control(READ)),
    (GET,  "/get_world_size",             Control(READ)),
    (GET,  "/server_info",                Control(READ)),
    (POST, "/start_profile",              Control(READ)),
    (POST, "/stop_profile",               Control(READ)),
    (POST, "/abort_requests",             Control(READ)),
    (POST, "/inference/v1/abort_requests", Control(READ)),
    (POST, "/v1/load_lora_adapter",       Control(MODELS)),
    (POST, "/v1/unload_lora_adapter",     Control(MODELS)),
    (POST, "/scale_elastic_ep",           Control(ONE)),
    (POST, "/is_scaling_elastic_ep",      Control(ONE)),
    (POST, "/fault_tolerance/apply",      Control(ONE)),
    (GET,  "/fault_tolerance/status",     Control(ONE)),
    (GET,  "/kv_event_sources",           Control(READ)),
    (GET,  "/load",                       Control(OPEN)),

    (BOTH, "/health",                     Own(Page::Alive)),
    (BOTH, "/ping",                       Own(Page::Alive)),
    (GET,  "/liveness",                   Own(Page::Alive)),
    (GET,  "/readiness",                  Own(Page::Ready)),
    (GET,  "/v1/models",                  Own(Page::Models)),
    (GET,  "/version",                    Own(Page::Version)),
    (GET,  "/metrics",                    Admin { open: true }),
    (POST, "/add_worker",                 Admin { open: false }),
    (POST, "/remove_worker",              Admin { open: false }),
    (GET,  "/list_workers",               Admin { open: false }),
    (GET,  "/get_loads",                  Admin { open: false }),
    (POST, "/flush_cache",                Admin { open: false }),
    (GET,  "/get_server_info",            Admin { open: false }),
    (GET,  "/get_model_info",             Admin { open: true }),
    (ANY,  "/workers",                    Admin { open: false }),
    (ANY,  "/workers/*",                  Admin { open: false }),
    (ANY,  "/admin/*",                    Admin { open: false }),
];

/// Of the paths that any worker can take, those on which its engine computes something.
const COMPUTED: [&str; 3] = ["/v1/systemone", "/v1/decisions", "/generative_scoring"];

/// Below these a newer vLLM may have paths that this table does not know.
const FORWARDED: [(&str, &str); 4] =
    [("/v1/", "/v1/*"), ("/v2/", "/v2/*"), ("/inference/", "/inference/*"), ("/cohere/", "/cohere/*")];

/// Rows in the order of their paths, for a binary search: cheaper than hashing a path.
static BY_PATH: LazyLock<Vec<usize>> = LazyLock::new(|| {
    let mut rows: Vec<usize> = (0..TABLE.len()).collect();
    rows.sort_by_key(|row| TABLE[*row].1);
    rows
});

/// Names of all templates, by [`Route::id`].
pub fn templates() -> impl ExactSizeIterator<Item = &'static str> {
    (0..TABLE.len() + FORWARDED.len() + 1).map(|id| match TABLE.get(id) {
        Some(entry) => entry.1,
        None => FORWARDED.get(id - TABLE.len()).map_or("other", |forwarded| forwarded.1),
    })
}

impl Route {
    /// The row for a request. With `forward_unknown`, what is unknown below vLLM's own prefixes goes to any worker.
    ///
    /// A path is looked up as a worker would read it, so that no spelling of it goes around the table.
    pub fn find(method: &Method, path: &str, forward_unknown: bool) -> Self {
        if let Some(row) = row_of(path) {
            return Self::known(row, method, path, forward_unknown);
        }
        match canonical(path) {
            Some(read) => Self::look_up(method, &read, forward_unknown),
            // A worker may be called by its URL there, and whoever asks has to have the right.
            None if path.starts_with("/workers/") => Self::look_up(method, path, false),
            None => Self::new(Class::Refused(Refusal::NotFound), "other", TABLE.len() + FORWARDED.len()),
        }
    }

    fn look_up(method: &Method, path: &str, forward_unknown: bool) -> Self {
        let below =
            |entry: &(&str, &str, Class)| entry.1.strip_suffix('*').is_some_and(|it| path.starts_with(it));
        match row_of(path).or_else(|| TABLE.iter().position(below)) {
            Some(row) => Self::known(row, method, path, forward_unknown),
            None => Self::unknown(path, forward_unknown).unwrap_or_else(|| {
                Self::new(Class::Refused(Refusal::NotFound), "other", TABLE.len() + FORWARDED.len())
                    .for_path(path)
            }),
        }
    }

    fn known(row: usize, method: &Method, path: &str, forward_unknown: bool) -> Self {
        let (methods, template, class) = TABLE[row];
        if methods == method.as_str()
            || methods.is_empty()
            || methods.split(", ").any(|allowed| method == allowed)
        {
            return Self::new(class, template, row);
        }
        if method == Method::OPTIONS {
            return Self::new(Own(Page::Options(methods)), template, row);
        }
        let refused = || Self::new(Class::Refused(Refusal::Method(methods)), template, row);
        Self::unknown(path, forward_unknown).unwrap_or_else(refused)
    }

    /// What a newer vLLM may know.
    fn unknown(path: &str, forward_unknown: bool) -> Option<Self> {
        let at = FORWARDED.iter().position(|(prefix, _)| forward_unknown && path.starts_with(prefix))?;
        Some(Self::new(PickOne, FORWARDED[at].1, TABLE.len() + at).for_path(path))
    }

    fn new(class: Class, template: &'static str, id: usize) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "the table has fewer than 65536 rows")]
        let id = id as u16;
        Self { class, template, dialect: Dialect::OpenAi, id }.for_path(template)
    }

    /// What is chosen for its requests. vLLM reads `X-data-parallel-rank` on these routes only; elsewhere its own balancer
    /// chooses the rank.
    pub(crate) fn by(&self) -> By {
        use BodyShape as Shape;
        match self.class {
            Routable(
                Shape::Chat
                | Shape::ChatBatch
                | Shape::Completions
                | Shape::Responses
                | Shape::Messages
                | Shape::Generate,
            ) => By::Rank,
            _ => By::Url,
        }
    }

    /// Whether an engine computes something for it. What a newer vLLM may know is taken to be of that kind if there is a
    /// body, which could be a prompt.
    pub(crate) fn computes(&self, has_body: bool) -> bool {
        match self.class {
            PickOne if self.is_unknown() => has_body,
            PickOne => COMPUTED.contains(&self.template),
            Routable(_) | Upload | Tunnel => true,
            Stored | Control(_) | Own(_) | Admin { .. } | Class::Refused(_) => false,
        }
    }

    /// Whether only the beginning of its path is known.
    pub(crate) fn is_unknown(&self) -> bool {
        usize::from(self.id) >= TABLE.len()
    }

    fn for_path(mut self, path: &str) -> Self {
        if path.starts_with("/v1/messages") {
            self.dialect = Dialect::Anthropic;
        } else if path.starts_with("/v1/responses") {
            self.dialect = Dialect::Responses;
        }
        self
    }
}

/// The row of exactly this path.
fn row_of(path: &str) -> Option<usize> {
    BY_PATH.binary_search_by(|row| TABLE[*row].1.cmp(path)).ok().map(|at| BY_PATH[at])
}

/// The path with percent escapes taken out; `None` if it is no text, or has segments that a server on the way may
/// drop or merge: nothing that vLLM serves does.
fn canonical(path: &str) -> Option<Cow<'_, str>> {
    let read =
        if path.contains('%') { percent_decode_str(path).decode_utf8().ok()? } else { Cow::Borrowed(path) };
    let odd = |segment: &str| matches!(segment, "" | "." | "..");
    (!read.contains('\\') && !read.get(1..)?.split('/').any(odd)).then_some(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(method: &str, path: &str) -> Route {
        Route::find(&method.parse().unwrap(), path, true)
    }

    #[test]
    fn each_row_is_found_by_its_own_method_and_path() {
        for (row, (methods, path, class)) in TABLE.iter().enumerate() {
            let method = methods.split(", ").next().filter(|m| !m.is_empty()).unwrap_or("DELETE");
            let route = find(method, &path.replace('*', "x"));
            assert_eq!((route.class, usize::from(route.id)), (*class, row), "{method} {path}");
            assert_eq!(templates().nth(row), Some(route.template));
        }
    }

    #[test]
    fn paths_that_clients_invent_share_a_template() {
        assert_eq!(find("POST", "/v1/new/thing").template, "/v1/*");
        assert_eq!(find("GET", "/v1/chat/completions").class, PickOne);
        assert_eq!(find("GET", "/etc/passwd").template, "other");
        assert_eq!(find("GET", "/v1").class, Class::Refused(Refusal::NotFound));
        assert_eq!(find("PUT", "/tokenize").class, Class::Refused(Refusal::Method(POST)));
        let closed = Route::find(&Method::GET, "/v1/new/thing", false);
        assert_eq!(closed.class, Class::Refused(Refusal::NotFound));
    }

    #[test]
    fn nothing_that_changes_a_worker_is_open_to_everybody() {
        for (methods, path, class) in TABLE {
            if let Control(action) = class {
                assert!(action.admin || *methods == GET, "{path}");
            }
        }
    }

    #[test]
    fn no_spelling_of_a_path_goes_around_the_table() {
        for path in ["/v1/%6coad_lora_adapter", "/v1/load%5Flora_adapter", "/%72eset_prefix_cache"] {
            assert!(matches!(find("POST", path).class, Control(_)), "{path}");
        }
        for path in [
            "/v1/../sleep",
            "/v1/%2e%2e/sleep",
            "/v1//load_lora_adapter",
            "/v1/load_lora_adapter/",
            "/v1/%ff",
        ] {
            assert_eq!(find("POST", path).class, Class::Refused(Refusal::NotFound), "{path}");
        }
    }

    #[test]
    fn errors_speak_the_dialect_of_the_route() {
        assert_eq!(find("POST", "/v1/messages").dialect, Dialect::Anthropic);
        assert_eq!(find("POST", "/v1/messages/nothing").dialect, Dialect::Anthropic);
        assert_eq!(find("GET", "/v1/responses/r1").dialect, Dialect::Responses);
        assert_eq!(find("POST", "/v1/completions").dialect, Dialect::OpenAi);
    }
}

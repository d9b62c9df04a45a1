//! Ready-made answers of an instant worker: each prompt route's, made once through the real answers.

use crate::answer::Answer;
use crate::answers;
use crate::http::Method;
use crate::lock::Held;
use crate::options::Mode;
use crate::ranks::Engines;
use crate::request::{Request, asks_for_stream};
use crate::routes::{self, Route};
use crate::script::{Plan, Step, script};
use crate::state::State;

/// One route's answers.
#[derive(Debug)]
struct Ready {
    route: Route,
    whole: Vec<u8>,
    stream: Vec<u8>,
    paced: Answer,
}

#[derive(Debug, Default)]
pub(crate) struct Prebuilt {
    ready: Vec<Ready>,
}

/// Not the demo server's route: its records repeat all text so far, which is too much to keep for a long answer.
const PATHS: [&str; 11] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/inference/v1/generate",
    "/v1/chat/completions/tokens",
    "/v1/embeddings",
    "/pooling",
    "/classify",
    "/score",
    "/rerank",
];

impl Prebuilt {
    /// The answers of a worker; none unless it is an instant one.
    pub(crate) fn new(state: &State) -> Self {
        let Mode::Instant { chunks } = state.options.mode else {
            return Self::default();
        };
        let ready = PATHS.iter().filter_map(|path| {
            let route = routes::find(path.as_bytes())?.route;
            let stream = asked(state, path, chunks, true);
            Some(Ready {
                route,
                whole: bytes(state, &asked(state, path, chunks, false)),
                stream: bytes(state, &stream),
                paced: stream,
            })
        });
        let ready = ready.collect();
        let mut engine = state.engine.held();
        *engine = Engines::new(state.options.ranks.clone(), *engine.options());
        Self { ready }
    }

    /// The bytes that answer a request.
    pub(crate) fn bytes(&self, route: Route, body: &[u8]) -> Option<&[u8]> {
        let ready = self.ready.iter().find(|ready| ready.route == route)?;
        Some(if asks_for_stream(body) { &ready.stream } else { &ready.whole })
    }

    /// The streamed answer to a request that asks for one, for sending record by record.
    pub(crate) fn paced(&self, route: Route, body: &[u8]) -> Option<&Answer> {
        self.ready
            .iter()
            .find(|ready| ready.route == route && asks_for_stream(body))
            .map(|ready| &ready.paced)
    }
}

fn asked(state: &State, path: &str, chunks: u32, stream: bool) -> Answer {
    let body = format!(
        r#"{{"stream":{stream},"max_tokens":{chunks},"max_output_tokens":{chunks},"sampling_params":{{"max_tokens":{chunks}}},"prompt":"p","input":"p","messages":[{{"role":"user","content":"p"}}],"token_ids":[1],"queries":"p","query":"p","documents":["p"],"store":false}}"#
    );
    let head = match &state.options.api_key {
        Some(key) => format!(
            "POST {path} HTTP/1.1\r\ncontent-type: application/json\r\nauthorization: Bearer {key}\r\n\r\n"
        ),
        None => format!("POST {path} HTTP/1.1\r\ncontent-type: application/json\r\n\r\n"),
    };
    let request = Request {
        method: Method::Post,
        target: path,
        found: routes::find(path.as_bytes()),
        head: head.as_bytes(),
        body: body.as_bytes(),
    };
    answers::answer(state, &request)
}

fn bytes(state: &State, answer: &Answer) -> Vec<u8> {
    let plan = Plan { style: &state.style, timing: None, last_token: 1, gated: false, keep: true };
    let steps = script(answer, None, &plan).steps;
    let sends = steps.into_iter().filter_map(|step| match step {
        Step::Send(bytes) => Some(bytes),
        Step::Until(_) | Step::Rest(_) | Step::Gate(_) | Step::Silence => None,
    });
    sends.flatten().collect()
}

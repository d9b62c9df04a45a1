//! One connection of a worker: request after request, from the first byte read to the last byte written.

use std::io;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::time::Instant;

use crate::answer::{Answer, Content};
use crate::answers;
use crate::counters::{OpenRequest, RequestEnd};
use crate::faults::Fault;
use crate::gates::Stage;
use crate::http::{Body, Connection, Framing, Head, Method, ReadEnd};
use crate::lock::Held;
use crate::options::Mode;
use crate::prebuilt::Prebuilt;
use crate::record::Recorded;
use crate::request::Request;
use crate::routes::{self, Found};
use crate::script::{Ending, Plan, Script, Step, Timing, replaced, script};
use crate::state::{InEngine, State};

/// How long a closing worker waits for the client to close too.
const LINGER: Duration = Duration::from_secs(2);

/// What a connection needs of its worker.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) state: State,
    pub(crate) prebuilt: Prebuilt,
}

/// Whether the connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Request,
    Close,
}

impl Served {
    /// Serves a connection until one side ends it.
    pub(crate) async fn connection(&self, connection: &mut Connection) {
        let _open = self.state.counters.open_connection();
        loop {
            let head = match connection.read_head(self.state.options.keep_alive).await {
                Ok(head) => head,
                Err(ReadEnd::Gone | ReadEnd::Idle) => return,
                Err(ReadEnd::Invalid) => return self.refuse_bytes(connection).await,
            };
            if self.request(connection, &head).await == Next::Close {
                return;
            }
        }
    }

    async fn refuse_bytes(&self, connection: &mut Connection) {
        let mut answer = Answer::text(400, "Invalid HTTP request received.");
        answer.headers.push(("connection", "close".to_owned()));
        let plan = Plan { style: &self.state.style, timing: None, last_token: 1, gated: false, keep: false };
        let _ = play(connection, script(&answer, None, &plan), &self.state).await;
        linger(connection).await;
    }

    async fn request(&self, connection: &mut Connection, head: &Head) -> Next {
        let state = &self.state;
        let target = &connection.pending()[head.target.clone()];
        let path = target.split(|&byte| byte == b'?').next().unwrap_or_default();
        let found = routes::find(path);
        let inference = found.is_some_and(|found| found.route.is_inference()) && head.method == Method::Post;
        let fault = asked_fault(connection, head).or_else(|| state.faults.meet(path, inference));
        let open = state.counters.open_request(inference);
        if inference {
            let (_, mut client) = connection.split();
            tokio::select! {
                biased;
                () = state.gates.pass(Stage::BeforeBody) => {}
                () = client.gone() => {}
            }
        }
        let body = match self.body(connection, head, fault.as_ref()).await {
            Ok(body) => body,
            Err(end) => {
                self.record(connection, head, None);
                open.end(end);
                return Next::Close;
            }
        };
        self.record(connection, head, Some(&body));
        self.answer(connection, Whole { head, body: &body, found, inference, fault }, open).await
    }

    /// Reads the body, or as much of it as the fault leaves.
    async fn body(
        &self,
        connection: &mut Connection,
        head: &Head,
        fault: Option<&Fault>,
    ) -> Result<Body, RequestEnd> {
        let stop_after = match fault {
            Some(Fault::EarlyAnswer(_)) => Some(0),
            Some(Fault::CloseAfterRequestBytes(bytes)) => Some(*bytes),
            _ => None,
        };
        match connection.read_body(head, stop_after).await {
            Ok(_) if matches!(fault, Some(Fault::CloseAfterRequestBytes(_))) => Err(RequestEnd::Cut),
            Ok(body) => Ok(body),
            Err(ReadEnd::Gone | ReadEnd::Idle | ReadEnd::Invalid) => Err(RequestEnd::Aborted),
        }
    }

    fn record(&self, connection: &Connection, head: &Head, body: Option<&Body>) {
        if !self.state.recorder.is_on() {
            return;
        }
        let pending = connection.pending();
        let raw = &pending[..head.len];
        let target = String::from_utf8_lossy(&raw[head.target.clone()]).into_owned();
        let bytes = body.map_or(&pending[head.len..], |body| connection.body(head, body));
        self.state.recorder.push(Recorded {
            order: 0,
            connection: connection.id,
            method: String::from_utf8_lossy(raw.split(|&byte| byte == b' ').next().unwrap_or_default())
                .into_owned(),
            target,
            head: bytes::Bytes::copy_from_slice(raw),
            body: bytes::Bytes::copy_from_slice(bytes),
            chunked: head.framing == Framing::Chunked,
            complete: body.is_some(),
        });
        self.state.counters.announce();
    }

    async fn answer(&self, connection: &mut Connection, whole: Whole<'_>, open: OpenRequest<'_>) -> Next {
        let (script, engine) = match self.instant(connection, &whole) {
            Some(rest) if rest.is_empty() => {
                connection.consume(whole.head, whole.body);
                open.end(RequestEnd::Served);
                return Next::Request;
            }
            Some(rest) => {
                let script = Script { steps: vec![Step::Send(rest)], ending: Ending::Keep };
                (script, InEngine::new(&self.state, Vec::new()))
            }
            None => self.planned(connection, &whole),
        };
        let ending = script.ending;
        let played = play(connection, script, &self.state).await;
        connection.consume(whole.head, whole.body);
        let end = match (played, ending) {
            (Played::ClientGone, _) => RequestEnd::Aborted,
            (Played::Done, Ending::Keep | Ending::Close) => RequestEnd::Served,
            (Played::Done, Ending::Cut | Ending::Reset) => RequestEnd::Cut,
        };
        match end {
            RequestEnd::Served => engine.finish(),
            RequestEnd::Aborted | RequestEnd::Cut => drop(engine),
        }
        if ending == Ending::Reset {
            // A zero linger makes the close a reset.
            let _ = socket2::SockRef::from(&connection.stream).set_linger(Some(Duration::ZERO));
        }
        let unread = matches!(whole.fault, Some(Fault::EarlyAnswer(_)));
        open.end(end);
        match (played, ending) {
            (Played::Done, Ending::Keep) => Next::Request,
            (Played::Done, Ending::Close) if unread => {
                linger(connection).await;
                Next::Close
            }
            _ => Next::Close,
        }
    }

    /// Sends a ready-made answer, if there is one and nothing stands in its way. Returns what did not fit the socket.
    fn instant(&self, connection: &Connection, whole: &Whole<'_>) -> Option<Vec<u8>> {
        let state = &self.state;
        let Mode::Instant { .. } = state.options.mode else {
            return None;
        };
        if !whole.inference || whole.fault.is_some() || state.gates.any() || !whole.head.keep_alive {
            return None;
        }
        let body = connection.body(whole.head, whole.body);
        let route = whole.found?.route;
        if state.options.pace.is_some() && self.prebuilt.paced(route, body).is_some() {
            return None;
        }
        let bytes = self.prebuilt.bytes(route, body)?;
        let written = connection.stream.try_write(bytes).unwrap_or(0);
        Some(bytes[written..].to_vec())
    }

    fn planned(&self, connection: &Connection, whole: &Whole<'_>) -> (Script, InEngine<'_>) {
        let state = &self.state;
        let body = connection.body(whole.head, whole.body);
        let mut answer = self.ready_made(whole, body).unwrap_or_else(|| {
            let pending = connection.pending();
            let request = Request {
                method: whole.head.method,
                target: std::str::from_utf8(&pending[whole.head.target.clone()]).unwrap_or_default(),
                found: whole.found,
                head: &pending[..whole.head.len],
                body,
            };
            answers::answer(state, &request)
        });
        if let Some(fault) = &whole.fault {
            answer = replaced(fault, answer);
        }
        if whole.fault == Some(Fault::EngineDead) {
            state.health.store(503, std::sync::atomic::Ordering::Relaxed);
        }
        let plan = Plan {
            style: &state.style,
            timing: self.timing(&answer),
            last_token: last_token(&answer, state),
            gated: whole.inference && state.gates.any(),
            keep: whole.head.keep_alive,
        };
        let script = script(&answer, whole.fault.as_ref(), &plan);
        (script, InEngine::new(state, answer.admissions))
    }

    fn ready_made(&self, whole: &Whole<'_>, body: &[u8]) -> Option<Answer> {
        let Mode::Instant { .. } = self.state.options.mode else {
            return None;
        };
        let found = whole.found.filter(|_| whole.inference)?;
        self.prebuilt.paced(found.route, body).cloned()
    }

    fn timing(&self, answer: &Answer) -> Option<Timing> {
        let state = &self.state;
        if state.options.mode == Mode::Engine {
            let first = answer.admissions.iter().map(|admission| admission.first_token).max()?;
            let per_token = state.engine.held().options().decode_per_token;
            return Some(Timing { first: state.instant(first), per_token });
        }
        let per_token = state.options.pace.filter(|_| matches!(answer.content, Content::Stream(_)))?;
        Some(Timing { first: Instant::now(), per_token })
    }
}

/// A request that was read, and what was found out about it.
struct Whole<'a> {
    head: &'a Head,
    body: &'a Body,
    found: Option<Found>,
    inference: bool,
    fault: Option<Fault>,
}

fn asked_fault(connection: &Connection, head: &Head) -> Option<Fault> {
    let value = &connection.pending()[head.fault.clone()?];
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// The token with which the answer is complete.
fn last_token(answer: &Answer, state: &State) -> u64 {
    let per_token = state.engine.held().options().decode_per_token.as_nanos().max(1);
    let tokens = |first: u64, finish: u64| u128::from(finish - first) / per_token + 1;
    let longest =
        answer.admissions.iter().map(|admission| tokens(admission.first_token, admission.finish)).max();
    longest.and_then(|tokens| u64::try_from(tokens).ok()).unwrap_or(1)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Played {
    Done,
    ClientGone,
}

/// Carries out the steps, unless the client leaves before the last one.
async fn play(connection: &mut Connection, script: Script, state: &State) -> Played {
    let (mut write, mut client) = connection.split();
    let steps = async {
        for step in script.steps {
            match step {
                Step::Send(bytes) => write.write_all(&bytes).await?,
                Step::Until(at) => tokio::time::sleep_until(at).await,
                Step::Rest(Duration::ZERO) => tokio::task::yield_now().await,
                Step::Rest(rest) => tokio::time::sleep(rest).await,
                Step::Gate(stage) => state.gates.pass(stage).await,
                Step::Silence => std::future::pending().await,
            }
        }
        Ok::<_, io::Error>(())
    };
    tokio::select! {
        biased;
        sent = steps => if sent.is_ok() { Played::Done } else { Played::ClientGone },
        () = client.gone() => Played::ClientGone,
    }
}

async fn linger(connection: &mut Connection) {
    let _ = tokio::time::timeout(LINGER, connection.drain()).await;
}

//! One connection: a request, its answer, the next request. It decides when the connection ends, and nothing about what
//! is asked.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use forebay_router::TwoWay;
use http::request::Parts;
use http::{Response, StatusCode};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::answer::{self, Form, Framing};
use super::body::RequestBody;
use super::input::{self, Incoming, Input, Next, Shared};
use super::output::{self, Output};
use crate::drain::Drain;
use crate::http2;

/// How long a client may go on sending what nobody wants any more, so that it can read why.
const LINGER: Duration = Duration::from_secs(2);

/// How long a client may take for its first request when all is to end: it could not know that it comes too late.
const FIRST_REQUEST: Duration = Duration::from_secs(1);

/// The end of a chunk, and of a chunk and the body.
const CHUNK_END: &[u8] = b"\r\n";
const LAST_CHUNK_END: &[u8] = b"\r\n0\r\n\r\n";
const NO_CHUNK: &[u8] = b"0\r\n\r\n";

/// How long a client may take for its requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// For the head of a request, and for the first request of a connection.
    pub head: Duration,
    /// Between the end of an answer and the next request.
    pub idle: Duration,
    /// For a request and its answer, if that is limited. Whoever answers keeps to it as long as it is asked for more.
    pub whole: Option<Duration>,
    /// For the body of a request to the admin API, if that is limited. Other bodies are whoever answers' business.
    pub body: Option<Duration>,
}

/// Serves a connection to its end, or until it is known to speak HTTP/2: gives it back then.
pub(crate) async fn serve<F, B>(
    stream: TcpStream,
    service: impl Fn(Box<Parts>, RequestBody) -> F,
    patience: Patience,
    drain: &Drain,
) -> Option<http2::Begun>
where
    F: Future<Output = Response<B>>,
    B: TwoWay,
{
    let (read, write) = stream.into_split();
    let mut client = Client { input: Input::shared(read), output: Output::new(write) };
    let _place = drain.enter().await;
    let mut wait = Wait::new(patience);
    loop {
        let incoming = match poll_fn(|cx| client.poll_next(cx, &mut wait, drain)).await {
            Waited::Request(incoming) => incoming,
            Waited::End => return None,
            Waited::Refused(..) if client.speaks_http2() => return client.give_back(),
            Waited::Refused(status, why) => {
                client.refuse(status, &why).await;
                return None;
            }
        };
        match client.exchange(incoming, &service, drain).await {
            After::Next => {}
            After::End => return None,
            After::Reset => {
                client.output.reset();
                return None;
            }
            After::Linger => {
                client.linger().await;
                return None;
            }
        }
    }
}

/// The client's side of a connection.
struct Client {
    input: Shared,
    output: Output,
}

/// What waiting for a request came to.
enum Waited {
    Request(Incoming),
    /// The connection closes without a word.
    End,
    Refused(StatusCode, String),
}

/// What follows an answer.
enum After {
    /// Another request.
    Next,
    /// The end.
    End,
    /// The end, which must not be taken for that of the answer.
    Reset,
    /// The end, as soon as the client has stopped to send.
    Linger,
}

/// How long a client may take. The timer is not set anew for each request: an idle connection is closed after once to
/// twice the limit. For a head that has begun, the limit is kept.
struct Wait {
    patience: Patience,
    /// The limit that the timer is set to.
    limit: Duration,
    timer: Pin<Box<Sleep>>,
    /// Something came since the timer was set.
    moved: bool,
    /// No request has come yet.
    is_new: bool,
}

impl Wait {
    fn new(patience: Patience) -> Self {
        let limit = patience.head;
        Self { patience, limit, timer: Box::pin(sleep(limit)), moved: false, is_new: true }
    }

    fn set(&mut self, limit: Duration) {
        self.limit = limit;
        self.moved = false;
        self.timer.as_mut().reset(Instant::now() + limit);
    }

    /// A request has come; from its answer on the connection is idle.
    fn came(&mut self) {
        (self.moved, self.is_new) = (true, false);
        // Only once for most connections: where heads come whole, the limit stays that of an idle one.
        if self.limit != self.patience.idle {
            self.set(self.patience.idle);
            self.moved = true;
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.timer.as_mut().poll(cx));
            if !self.moved {
                return Poll::Ready(());
            }
            self.set(self.limit);
        }
    }
}

impl Client {
    fn poll_next(&mut self, cx: &mut Context<'_>, wait: &mut Wait, drain: &Drain) -> Poll<Waited> {
        let mut input = input::lock(&self.input);
        let had_begun = input.has_begun();
        match input.poll_next(cx, &self.input) {
            Poll::Ready(Next::Request(incoming)) => {
                wait.came();
                return Poll::Ready(Waited::Request(incoming));
            }
            Poll::Ready(Next::End) => return Poll::Ready(Waited::End),
            Poll::Ready(Next::Refused(why)) => {
                return Poll::Ready(Waited::Refused(answer::status_of(why), why.to_string()));
            }
            Poll::Pending => {}
        }
        if drain.has_begun() && !input.has_begun() {
            if !wait.is_new {
                return Poll::Ready(Waited::End);
            }
            if wait.limit > FIRST_REQUEST {
                wait.set(FIRST_REQUEST);
            }
        }
        if input.has_begun() && !had_begun {
            wait.set(wait.patience.head);
        }
        ready!(wait.poll(cx));
        Poll::Ready(if input.has_begun() {
            let why = "the request's head did not come in time";
            Waited::Refused(StatusCode::REQUEST_TIMEOUT, why.to_owned())
        } else {
            Waited::End
        })
    }

    /// Whether what could not be read is the beginning of HTTP/2.
    fn speaks_http2(&self) -> bool {
        http2::begins(&input::lock(&self.input).ahead)
    }

    /// The connection, with what has been read of it. No request is under way.
    fn give_back(self) -> Option<http2::Begun> {
        let input = Arc::into_inner(self.input)?.into_inner().ok()?;
        let stream = input.half.reunite(self.output.half).ok()?;
        Some(http2::Begun { came: input.ahead, stream, heard: Arc::default() })
    }

    /// One request and its answer. The answer is dropped, and with it all that is done for it, if the client leaves.
    async fn exchange<F, B>(
        &mut self,
        incoming: Incoming,
        service: impl Fn(Box<Parts>, RequestBody) -> F,
        drain: &Drain,
    ) -> After
    where
        F: Future<Output = Response<B>>,
        B: TwoWay,
    {
        let Incoming { head, body } = incoming;
        let mut form = Form::of(&head);
        let answered = {
            let mut serving = pin!(service(head.parts, body));
            poll_fn(|cx| match serving.as_mut().poll(cx) {
                Poll::Ready(response) => Poll::Ready(Some(response)),
                Poll::Pending => self.poll_meanwhile(cx).map(|()| None),
            })
            .await
        };
        let Some(response) = answered else { return After::End };
        let (parts, mut body) = response.into_parts();
        let framing = form.framing(parts.status, body.size_hint().exact());
        // What follows on a switched connection is no request.
        let is_read = framing == Framing::Switched || input::lock(&self.input).ends_body();
        form.keep_alive &= is_read && !drain.has_begun();
        let mut head = output::page();
        form.write(&parts, framing, &mut head);
        // Not kept while the body goes out, which may take long.
        drop(parts);
        let mut answering = Answering { head: Some(head), framing, ended: false, broken: false };
        let whole = poll_fn(|cx| answering.poll(cx, self, Pin::new(&mut body))).await;
        match (whole, is_read) {
            (false, _) if answering.broken && matches!(answering.framing, Framing::UntilClose) => {
                After::Reset
            }
            (false, _) => After::End,
            (true, true) if form.keep_alive => After::Next,
            (true, true) => After::End,
            (true, false) => After::Linger,
        }
    }

    /// While an answer is awaited: ready if the client has left. The client that waits for it is told to send its body.
    fn poll_meanwhile(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut input = input::lock(&self.input);
        if std::mem::take(&mut input.wants_continue) {
            self.output.put(b"HTTP/1.1 100 Continue\r\n\r\n".to_vec(), Bytes::new(), b"");
        }
        if let Poll::Ready(Err(_)) = self.output.poll_flush(cx) {
            return Poll::Ready(());
        }
        input.poll_left(cx)
    }

    /// Says why nothing more will be read.
    async fn refuse(mut self, status: StatusCode, why: &str) {
        let refusal = answer::refusal(status, why);
        self.output.put(refusal, Bytes::new(), b"");
        self.linger().await;
    }

    /// Closes once the client has, so that what it still sends does not wipe out what it has not read yet.
    async fn linger(mut self) {
        let closed = poll_fn(|cx| {
            let told = self.output.poll_shutdown(cx)?;
            let left = input::lock(&self.input).poll_forget(cx);
            ready!(told);
            left.map(std::io::Result::Ok)
        });
        let _late = timeout(LINGER, closed).await;
    }
}

/// An answer on its way.
struct Answering {
    /// Until it is sent: with the first bytes of the body, if they are there.
    head: Option<Vec<u8>>,
    framing: Framing,
    /// All has been handed to the output.
    ended: bool,
    /// The body will not become whole.
    broken: bool,
}

impl Answering {
    /// Ready when all is written, with true, or when it cannot be.
    fn poll<B: TwoWay>(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        mut body: Pin<&mut B>,
    ) -> Poll<bool> {
        loop {
            match client.output.poll_flush(cx) {
                Poll::Ready(Ok(())) if self.ended => return Poll::Ready(!self.broken),
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(false),
                Poll::Pending => {
                    if body.poll_inward(cx).is_ready() {
                        self.broken = true;
                        return Poll::Ready(false);
                    }
                    if self.framing == Framing::Switched {
                        return Poll::Pending;
                    }
                    return input::lock(&client.input).poll_left(cx).map(|()| false);
                }
            }
            if matches!(self.framing, Framing::None(_) | Framing::Length(0)) {
                self.ended = true;
                self.put(client, Bytes::new(), b"");
                continue;
            }
            match body.as_mut().poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.data(client, data, body.is_end_stream());
                    }
                }
                Poll::Ready(Some(Err(_))) => {
                    (self.ended, self.broken) = (true, true);
                    self.put(client, Bytes::new(), b"");
                }
                Poll::Ready(None) => self.end(client),
                Poll::Pending if self.head.is_some() => self.put(client, Bytes::new(), b""),
                Poll::Pending if self.framing == Framing::Switched => return Poll::Pending,
                Poll::Pending => return input::lock(&client.input).poll_left(cx).map(|()| false),
            }
        }
    }

    /// Part of the body.
    fn data(&mut self, client: &mut Client, data: Bytes, is_last: bool) {
        match &mut self.framing {
            Framing::Length(left) => match left.checked_sub(data.len() as u64) {
                Some(rest) => {
                    *left = rest;
                    self.ended = rest == 0;
                    self.put(client, data, b"");
                }
                // More than was announced: the client must not take the rest for the next answer.
                None => (self.ended, self.broken) = (true, true),
            },
            Framing::Chunked if data.is_empty() => {}
            Framing::Chunked => {
                self.ended = is_last;
                let behind = if is_last { LAST_CHUNK_END } else { CHUNK_END };
                let mut before = self.head.take().unwrap_or_else(output::page);
                answer::chunk_size(data.len(), &mut before);
                client.output.put(before, data, behind);
            }
            Framing::None(_) | Framing::UntilClose | Framing::Switched => self.put(client, data, b""),
        }
    }

    /// The body has come to its end.
    fn end(&mut self, client: &mut Client) {
        self.ended = true;
        match self.framing {
            Framing::Length(_) => self.broken = true,
            Framing::Chunked => return self.put(client, Bytes::new(), NO_CHUNK),
            Framing::None(_) | Framing::UntilClose | Framing::Switched => {}
        }
        self.put(client, Bytes::new(), b"");
    }

    fn put(&mut self, client: &mut Client, data: Bytes, behind: &'static [u8]) {
        let head = self.head.take().unwrap_or_default();
        client.output.put(head, data, behind);
    }
}

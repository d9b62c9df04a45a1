//! The life of one request, top to bottom. Each step is a stage with a file of its own; this one only puts them in
//! order.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use forebay_workers::{Pool, PoolError, Reader, World, Writer};
use http::request::Parts;
use http::{HeaderValue, Request, Response, header};
use hyper::body::Incoming;
use tokio::time::{timeout, timeout_at};

use crate::authority;
use crate::classify::{self, Asked, Classifier};
use crate::clock;
use crate::failure::{Failure, Stage};
use crate::fanout::Order;
use crate::forward::{Forward, Forwarded};
use crate::headers::{self, REQUEST_ID, Written};
use crate::metrics::{Record, RouterMetrics};
use crate::outcome::Outcome;
use crate::own;
use crate::patience::Patience;
use crate::records::Records;
use crate::relay::{Manner, Relay, ResponseBody};
use crate::report::Report;
use crate::route::{Action, Class, Refusal, Route};
use crate::settings::RouterSettings;
use crate::shard::Shard;

/// Takes requests to workers.
pub struct Router {
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
    pub(crate) settings: RouterSettings,
    pub(crate) metrics: Arc<RouterMetrics>,
}

/// Which listener a request came in by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Clients.
    Data,
    /// Operators: no request to a worker passes here.
    Admin,
}

/// A request that has been taken note of.
pub struct Begun {
    route: Route,
    /// Whether it has the right that its route asks for.
    allowed: bool,
    peer: SocketAddr,
    record: Record,
}

impl Begun {
    /// Whether the admin API has to answer it.
    pub fn is_for_admin_api(&self) -> bool {
        self.allowed && matches!(self.route.class, Class::Admin { .. })
    }

    /// It has been answered by somebody else.
    pub fn answered(mut self, response: Response<ResponseBody>) -> Response<ResponseBody> {
        self.record.answered(Ok(response), &self.route)
    }
}

/// A request whose route is known.
struct Call {
    peer: SocketAddr,
    route: Route,
    parts: Parts,
    /// The epoch it was admitted in: it lives by this one to its end.
    world: Arc<World>,
    /// Its id, if it came without one.
    made_id: Option<HeaderValue>,
    record: Record,
}

impl Router {
    /// A router over this fleet.
    pub fn new(reader: Reader, writer: Writer, settings: RouterSettings, metrics: RouterMetrics) -> Self {
        Self { reader, writer, settings, metrics: Arc::new(metrics) }
    }

    /// Takes note of a request, so that it is counted even if its client leaves at once.
    ///
    /// The right to it is decided here, before anything is taken out: what the client's `Connection` header names
    /// must not hide where the request comes from.
    pub fn begin<B>(&self, side: Side, peer: SocketAddr, request: &Request<B>) -> Begun {
        let mut route = Route::find(request.method(), request.uri().path(), self.settings.forward_unknown);
        let to_workers = matches!(route.class, Class::Routable(_) | Class::PickOne | Class::Control(_));
        if side == Side::Admin && to_workers {
            route.class = Class::Refused(Refusal::NotFound);
        }
        let guarded = matches!(route.class, Class::Admin { open: false })
            || matches!(route.class, Class::Control(action) if action.admin);
        let key = self.settings.admin_api_key.as_ref();
        let allowed = !guarded || authority::is_admin(key, peer, request.uri(), request.headers());
        Begun { route, allowed, peer, record: Record::begin(&self.metrics, route) }
    }

    /// Serves a request: admit → classify → pick pool → select → forward → relay → outcome.
    ///
    /// Dropping the future closes the worker's connection, lowers the load and counts the request, in this order.
    pub async fn serve(
        self: &Arc<Self>,
        shard: &Arc<Shard>,
        begun: Begun,
        request: Request<Incoming>,
    ) -> Response<ResponseBody> {
        let Begun { route, allowed, peer, record } = begun;
        let (mut parts, body) = request.into_parts();
        for label in headers::strip(&mut parts.headers, self.settings.trust_client_internals) {
            self.metrics.note_stripped(label);
        }
        let (id, made_id) = self.identify(shard, &parts);
        let world = self.reader.world();
        let call = Call { peer, route, parts, world, made_id, record };
        let mut response = match route.class {
            _ if !allowed => call.answered(Err(Failure::Forbidden)),
            Class::Routable(_) | Class::PickOne => self.forward(shard, call, body).await,
            // Boxed, since it is rare and would make every request's future larger.
            Class::Control(action) => Box::pin(self.control(shard, call, body, action)).await,
            Class::Own(page) => call.answered(Ok(own::answer(page, &self.reader.world()))),
            Class::Refused(Refusal::Method(allowed)) => call.answered(Err(Failure::Method(allowed))),
            Class::Refused(Refusal::NotFound) | Class::Admin { .. } => call.answered(Err(Failure::NotFound)),
        };
        response.headers_mut().insert(REQUEST_ID, id);
        response
    }

    /// One request to one worker. (A prefill/decode pair will take its own way from the pool on.)
    async fn forward(&self, shard: &Arc<Shard>, mut call: Call, body: Incoming) -> Response<ResponseBody> {
        let asked = match self.classify(&call, body).await {
            Ok(asked) => asked,
            Err(failure) => return call.answered(Err(failure)),
        };
        let pool = match pick_pool(&call.world, call.route.class, &asked) {
            Ok(pool) => pool,
            Err(failure) => return call.answered(Err(failure)),
        };
        call.record.pool(pool);
        let bodiless = asked.body.is_empty() && !call.parts.headers.contains_key(header::CONTENT_LENGTH);
        let length = (!bodiless).then_some(asked.body.len());
        let head =
            Written { parts: &call.parts, made_id: call.made_id.as_ref(), length, authorization: None };
        let now_ms = clock::millis(call.record.started);
        let forward =
            Forward { shard, settings: &self.settings, metrics: &self.metrics, head: &head, now_ms };
        let times = &self.settings.times;
        let deadline = times.request.and_then(|limit| call.record.started.checked_add(limit));
        match within(deadline, forward.to_any_of(pool, &asked)).await {
            Ok(forwarded) => {
                let patience = Patience::new(times.stream_idle, deadline);
                call.relayed(forwarded, patience, self.settings.expose_routing_headers)
            }
            Err(failure) => call.answered(Err(failure)),
        }
    }

    /// Reads the body, and what it asks for.
    async fn classify(&self, call: &Call, body: Incoming) -> Result<Asked, Failure> {
        let body = self.read(body).await?;
        let classifier = Classifier {
            settings: &self.settings,
            metrics: &self.metrics,
            policy: call.world.all().policy().kind(),
            peer: call.peer,
            parts: &call.parts,
        };
        match call.route.class {
            Class::Routable(shape) => classifier.prompt(shape, &body),
            _ => classifier.opaque(&body),
        }
    }

    /// Reads the body whole, within its limits.
    async fn read(&self, body: Incoming) -> Result<Bytes, Failure> {
        let mut reading = pin!(classify::read_body(body, self.settings.max_payload_bytes));
        match self.settings.times.client_body {
            Some(limit) => timeout(limit, reading.as_mut()).await.unwrap_or(Err(Failure::BodyTimeout)),
            None => reading.await,
        }
    }

    /// A request that concerns whole workers.
    async fn control(
        self: &Arc<Self>,
        shard: &Arc<Shard>,
        call: Call,
        body: Incoming,
        action: Action,
    ) -> Response<ResponseBody> {
        let Call { route, parts, world, made_id, mut record, .. } = call;
        let answered = match self.read(body).await {
            Ok(body) => {
                let (router, shard) = (Arc::clone(self), Arc::clone(shard));
                Order { router, shard, parts, made_id, body, action }.carry_out(&world).await
            }
            Err(failure) => Err(failure),
        };
        record.answered(answered, &route)
    }

    /// The request's id, and whether workers have to be told it.
    fn identify(&self, shard: &Shard, parts: &Parts) -> (HeaderValue, Option<HeaderValue>) {
        let id = match headers::given_id(&parts.headers, &self.settings.request_id_headers) {
            Some((id, true)) => return (id.clone(), None),
            Some((id, false)) => id.clone(),
            None => shard.fresh_id(),
        };
        (id.clone(), Some(id))
    }
}

impl Call {
    fn answered(mut self, answer: Result<Response<ResponseBody>, Failure>) -> Response<ResponseBody> {
        self.record.answered(answer, &self.route)
    }

    /// The worker's answer, on its way to the client.
    fn relayed(self, forwarded: Forwarded, patience: Patience, expose: bool) -> Response<ResponseBody> {
        let Forwarded { mut answer, leg, chosen } = forwarded;
        if let Some(chosen) = chosen.as_ref().filter(|_| expose) {
            headers::expose(&mut answer.headers, leg.worker().name(), &chosen.choice);
        }
        let report = chosen
            .filter(|_| answer.status.is_success())
            .and_then(|chosen| Report::new(leg.worker(), &chosen.policy, chosen.choice, chosen.is_text));
        let mut record = self.record;
        let streamed = answer
            .headers
            .get(header::CONTENT_TYPE)
            .is_some_and(|t| t.as_bytes().starts_with(b"text/event-stream"));
        record.status(answer.status, streamed);
        // To a body of known length nothing can be added.
        let is_open = answer.body.size_hint().exact().is_none();
        let records = streamed.then(|| if is_open { Records::default() } else { Records::raw() });
        let complete = Outcome::of_status(answer.status);
        let manner = Manner { complete, records, dialect: self.route.dialect, patience, report };
        let relay = Relay::new(answer.body, leg, record, manner);
        let mut response = Response::new(ResponseBody::Relay(Box::new(relay)));
        *response.status_mut() = answer.status;
        *response.headers_mut() = answer.headers;
        response
    }
}

impl Record {
    /// The router answers by itself.
    fn answered(
        &mut self,
        answer: Result<Response<ResponseBody>, Failure>,
        route: &Route,
    ) -> Response<ResponseBody> {
        let response = match answer {
            Ok(response) => {
                self.outcome = Outcome::Own;
                response
            }
            Err(failure) => {
                self.outcome = failure.outcome();
                failure.response(route.dialect)
            }
        };
        self.status(response.status(), false);
        response
    }
}

/// Ends what takes too long. Most have no limit, and pay nothing.
async fn within<T>(
    deadline: Option<Instant>,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let mut work = pin!(work);
    match deadline {
        Some(deadline) => timeout_at(deadline.into(), work.as_mut())
            .await
            .unwrap_or(Err(Failure::WorkerTimeout(Stage::Request))),
        None => work.await,
    }
}

/// The pool that serves what is asked for. A body that could not name a model may go anywhere.
fn pick_pool<'w>(world: &'w World, class: Class, asked: &Asked) -> Result<&'w Arc<Pool>, Failure> {
    if class == Class::PickOne && !asked.is_object {
        return Ok(world.all());
    }
    world.pool(asked.model.as_deref()).map_err(|error| match error {
        PoolError::UnknownModel => Failure::UnknownModel(asked.model.clone().unwrap_or_default()),
        PoolError::ModelNeeded => Failure::ModelNeeded,
        PoolError::NothingKnown => {
            let pool_size = world.workers().len() as u64;
            Failure::PoolExhausted { retries: 0, pool_size, open_circuits: 0, unhealthy: pool_size }
        }
    })
}

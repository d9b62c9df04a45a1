//! The life of one request, top to bottom. Each step is a stage with a file of its own; this one only puts them in
//! order.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use forebay_workers::{Reader, Worker, Writer};
use http::request::Parts;
use http::{HeaderValue, Response};
use tokio::sync::Mutex;

use crate::admission::Admission;
use crate::authority;
use crate::call::Call;
use crate::classify::Asked;
use crate::clock;
use crate::failure::Failure;
use crate::fanout::Order;
use crate::forward::Forward;
use crate::forwarded::{Forwarded, Progress};
use crate::headers::{self, REQUEST_ID, Trust, Written};
use crate::incoming::Incoming;
use crate::line::InLine;
use crate::metrics::RouterMetrics;
use crate::own;
use crate::pair::Pair;
use crate::pairs::Pairs;
use crate::patience::{Patience, within};
use crate::pick::pick_pool;
use crate::record::{Books, Record};
use crate::relay::ResponseBody;
use crate::route::{Action, Class, Refusal, Route};
use crate::settings::RouterSettings;
use crate::shard::Shard;
use crate::stored::Stored;
use crate::trial::Trials;

/// Takes requests to workers.
pub struct Router {
    pub(crate) admission: Admission,
    /// The process is about to end.
    draining: AtomicBool,
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
    pub(crate) settings: RouterSettings,
    /// Prefill/decode pairs, if workers have roles.
    pairs: Option<Pairs>,
    books: Arc<Books>,
    /// Who keeps which response.
    pub(crate) stored: Arc<Stored>,
    /// Taken by the reset that is under way.
    pub(crate) resetting: Mutex<()>,
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
    record: Box<Record>,
}

impl Begun {
    /// Whether the admin API has to answer it.
    pub fn is_for_admin_api(&self) -> bool {
        self.allowed && matches!(self.route.class, Class::Admin { .. })
    }

    /// It has been answered by somebody else.
    pub fn answered(mut self, response: Response<ResponseBody>) -> Response<ResponseBody> {
        self.record.answered(Ok(response))
    }
}

impl Router {
    /// A router over this fleet.
    pub fn new(
        reader: Reader,
        writer: Writer,
        settings: RouterSettings,
        books: Books,
        pairs: Option<Pairs>,
    ) -> Self {
        let admission = Admission::new(&settings.admission, books.metrics.queued.clone());
        let draining = AtomicBool::new(false);
        let (books, resetting) = (Arc::new(books), Mutex::default());
        let stored = Arc::default();
        Self { admission, draining, reader, writer, settings, pairs, books, stored, resetting }
    }

    pub(crate) fn metrics(&self) -> &RouterMetrics {
        &self.books.metrics
    }

    pub(crate) fn trials(&self) -> &Trials {
        &self.books.trials
    }

    /// Prompt tokens that a worker was given and has not prefilled yet, as predicted.
    pub fn pending_prefill_tokens(&self, worker: &Worker) -> u64 {
        worker.pending_tokens(clock::now_ms())
    }

    /// From now on nobody should send requests here, although they are still served: the readiness page says so.
    pub fn begin_drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Whatever is still under way ends when it is polled next, and its client is told.
    pub fn cut(&self) {
        self.books.cut();
    }

    /// Takes note of a request, so that it is counted even if its client leaves at once.
    ///
    /// The right to it is decided here, before anything is taken out: what the client's `Connection` header names
    /// must not hide where the request comes from.
    pub fn begin(&self, side: Side, peer: SocketAddr, head: &Parts) -> Begun {
        let mut route = Route::find(&head.method, head.uri.path(), self.settings.forward_unknown);
        let to_workers = route.class.is_for_workers();
        if side == Side::Admin && to_workers {
            route.class = Class::Refused(Refusal::NotFound);
        }
        let guarded = matches!(route.class, Class::Admin { open: false })
            || matches!(route.class, Class::Control(action) if action.admin);
        let key = self.settings.admin_api_key.as_ref();
        let allowed = !guarded || authority::is_admin(key, peer, &head.uri, &head.headers);
        let record = Box::new(Record::begin(&self.books, self.reader.world(), route));
        Begun { route, allowed, peer, record }
    }

    /// Serves a request: admit → classify → pick pool → select → forward → relay → outcome.
    ///
    /// Dropping the future closes the worker's connection, lowers the load and counts the request, in this order.
    pub async fn serve(
        self: &Arc<Self>,
        shard: &Arc<Shard>,
        begun: Begun,
        mut parts: Box<Parts>,
        body: impl Incoming,
    ) -> Response<ResponseBody> {
        let Begun { route, allowed, peer, mut record } = begun;
        // Behind a body nothing switches: what is not the body's would be the other protocol's.
        let may_switch = route.class.may_switch() && body.exact() == Some(0);
        let protocol = may_switch.then(|| headers::upgrade(&parts.headers)).flatten().map(Box::new);
        let stripped = headers::strip(&mut parts.headers, Trust::of(&self.settings));
        record.account.stripped = stripped.internals;
        let trial_failure = stripped.trial.map(|trial| record.account.trial = trial).err();
        for label in &record.account.stripped {
            self.metrics().note_stripped(label);
        }
        let (id, made_id) = self.identify(shard, &parts);
        record.account.id = Some(id.clone());
        let (waited, client, is_kept, renaming) = (false, None, false, None);
        let call = Call { peer, route, parts, made_id, record, waited, protocol, client, is_kept, renaming };
        let mut response = match route.class {
            _ if !allowed => call.answered(Err(Failure::Forbidden)),
            _ if let Some(failure) = trial_failure => call.answered(Err(failure)),
            Class::Routable(_) | Class::PickOne => self.forward(shard, call, body).await,
            // Boxed, since they are rare and would make every request's future larger.
            Class::Upload | Class::Tunnel | Class::Stored => Box::pin(self.forward(shard, call, body)).await,
            Class::Control(action) => Box::pin(self.control(shard, call, body, action)).await,
            Class::Own(page) => call.answered(Ok(own::answer(
                page,
                &self.reader.world(),
                &self.settings.aliases,
                self.terms(),
            ))),
            Class::Refused(Refusal::Method(allowed)) => call.answered(Err(Failure::Method(allowed))),
            Class::Refused(Refusal::NotFound) | Class::Admin { .. } => call.answered(Err(Failure::NotFound)),
        };
        response.headers_mut().insert(REQUEST_ID, id);
        response
    }

    /// What makes it ready, beside its workers.
    fn terms(&self) -> own::Terms {
        let needs_prefill = |pairs: &Pairs| !pairs.settings.connector.decodes_alone();
        own::Terms {
            draining: self.draining.load(Ordering::Relaxed),
            needs_prefill: self.pairs.as_ref().is_some_and(needs_prefill),
        }
    }

    /// One request to one worker, or to a pair of them.
    async fn forward(
        &self,
        shard: &Arc<Shard>,
        mut call: Call,
        body: impl Incoming,
    ) -> Response<ResponseBody> {
        let times = &self.settings.times;
        let deadline = self.deadline(&call.record);
        let found = {
            // Pinned where it is made, since it is large and would be moved once more for each request.
            let finding = pin!(self.find_answer(shard, &mut call, body));
            within(deadline, || self.books.is_cut(), finding).await
        };
        match found {
            Ok(forwarded) => {
                let patience = Patience::new(times.stream_idle, deadline);
                call.relayed(forwarded, patience, (self.settings.expose_routing_headers, &self.stored))
            }
            Err(failure) => call.answered(Err(failure)),
        }
    }

    /// When a request has to be over.
    fn deadline(&self, record: &Record) -> Option<Instant> {
        self.settings.times.request.and_then(|limit| record.account.started.checked_add(limit))
    }

    /// The head of a worker's answer, however often and however long it has to be waited for.
    async fn find_answer(
        &self,
        shard: &Arc<Shard>,
        call: &mut Call,
        body: impl Incoming,
    ) -> Result<Forwarded, Failure> {
        let permit = self.admission.enter().await?;
        call.waited = permit.as_ref().is_some_and(|permit| permit.waited);
        call.record.permit = permit;
        // The waits are boxed, since they are rare and would make every request's future larger.
        if !call.enter(&self.reader, shard) {
            Box::pin(self.let_in(shard, call)).await;
        }
        let mut asked = self.classify(call, body).await?;
        call.is_kept = asked.is_kept;
        call.renaming = asked.renaming.take();
        if call.route.class == Class::Stored {
            return Box::pin(self.find_stored(shard, call, &asked)).await;
        }
        if let Some(previous) = asked.continues.take() {
            asked.only = Box::pin(self.find_previous(shard, call, &previous)).await;
        }
        let mut line = None;
        let mut has_moved = false;
        loop {
            match self.to_worker(shard, call, &asked, &mut line).await {
                Err(failure @ Failure::PoolExhausted { .. }) => {
                    line.take().into_iter().for_each(InLine::leave);
                    Box::pin(self.worker_came(shard, call)).await.ok_or(failure)?;
                }
                Err(Failure::Overloaded) => {
                    Box::pin(self.place_came(shard, call, (&asked, &mut line))).await?;
                }
                Err(Failure::RanksMoved) if !std::mem::replace(&mut has_moved, true) => {
                    call.waited = true;
                    Box::pin(self.let_in(shard, call)).await;
                }
                found => {
                    line.take().into_iter().for_each(InLine::leave);
                    if let Some(upload) = &asked.upload {
                        call.record.account.request_bytes = upload.read();
                    }
                    return found;
                }
            }
        }
    }

    /// To any worker of the pool that serves what is asked for. Leaves the line for a place when there is one.
    async fn to_worker(
        &self,
        shard: &Arc<Shard>,
        call: &mut Call,
        asked: &Asked,
        line: &mut Option<InLine<'_>>,
    ) -> Result<Forwarded, Failure> {
        let Call { record, parts, made_id, route, waited, protocol, .. } = call;
        let started = record.account.started;
        let world = self.pairs.as_ref().map(|_| Arc::clone(&record.account.world));
        let (pool, attempts) = record.pick_pool(|world| pick_pool(world, route, asked))?;
        let head = Written {
            parts,
            made_id: made_id.as_ref(),
            replaces_id: false,
            path: None,
            length: asked.length(&parts.headers),
            protocol: protocol.as_deref(),
            authorization: None,
        };
        let now_ms = if *waited { clock::now_ms() } else { clock::millis(started) };
        let forward = Forward {
            shard,
            settings: &self.settings,
            metrics: self.metrics(),
            writer: &self.writer,
            head: &head,
            now_ms,
        };
        let progress = Progress { attempts, line };
        let ask = match &self.pairs {
            Some(pairs) => {
                let computes = route.computes(asked.upload.is_some() || !asked.body.is_empty());
                pairs.ask_of(asked, computes)?
            }
            None => None,
        };
        match (&self.pairs, ask) {
            (Some(pairs), Some(ask)) => {
                let prefill = world.as_ref().and_then(|world| world.prefill_pool(asked.model.as_deref()));
                let tokens =
                    asked.tokens.unwrap_or_else(|| pool.policy().estimated_tokens(u64::from(ask.text_bytes)));
                let pair = Pair { forward: &forward, pairs, decode: pool, prefill, asked, ask, tokens };
                // Boxed, since it would make every request's future larger.
                Box::pin(pair.answer(progress)).await
            }
            _ => forward.to_any_of(pool, asked, None, progress).await,
        }
    }

    /// A request that concerns whole workers.
    async fn control(
        self: &Arc<Self>,
        shard: &Arc<Shard>,
        call: Call,
        mut body: impl Incoming,
        action: Action,
    ) -> Response<ResponseBody> {
        let Call { parts, made_id, mut record, .. } = call;
        let world = Arc::clone(&record.account.world);
        let deadline = self.deadline(&record);
        let (router, shard) = (Arc::clone(self), Arc::clone(shard));
        let bytes = &mut record.account.request_bytes;
        let answered = {
            let carrying_out = pin!(async move {
                let body = self.read(&mut body).await?;
                *bytes = body.len() as u64;
                Order { router, shard, parts, made_id, body, action }.carry_out(&world).await
            });
            within(deadline, || self.books.is_cut(), carrying_out).await
        };
        record.answered(answered)
    }

    /// The request's id, and whether workers have to be told it.
    fn identify(&self, shard: &Shard, parts: &Parts) -> (HeaderValue, Option<HeaderValue>) {
        let id = match headers::given_id(&parts.headers, &self.settings.request_id_headers) {
            Some((id, true)) => return (headers::apart(id), None),
            Some((id, false)) if !headers::steers(id) => headers::apart(id),
            Some((_, false)) | None => shard.fresh_id(),
        };
        (id.clone(), Some(id))
    }
}

//! What one request was and how it went: plain facts, noted on the way and read once, at the request's end. It decides
//! nothing and counts nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use forebay_openai::Usage;
use forebay_policy::{Choice, Slot};
use forebay_workers::note::Ended;
use forebay_workers::{Worker, World};
use http::HeaderValue;

use crate::outcome::Outcome;
use crate::pairs::PairOutcome;
use crate::route::Route;

/// The facts of one request. Handles, not copies: making one costs no allocation.
#[derive(Clone)]
pub struct Account {
    /// The epoch's view that it was served by.
    pub world: Arc<World>,
    /// What it asked for.
    pub route: Route,
    /// Its id, once it has one.
    pub id: Option<HeaderValue>,
    /// The trial that it names, if it does.
    pub trial: Option<Arc<str>>,
    /// When its head had come.
    pub started: Instant,
    /// The name that its pool is served under; empty before a pool was picked, and for the pools that no single name
    /// has.
    pub model: Option<Arc<str>>,
    /// The workers that were asked.
    pub attempts: Attempts,
    /// Status that the client was sent; 0 if none.
    pub status: u16,
    /// Whether the answer was a stream of events.
    pub streamed: bool,
    /// How it ended.
    pub outcome: Outcome,
    /// From its head to the first byte of the answer's body.
    pub first_byte: Option<Duration>,
    /// From its head to the first record of a stream that is no comment.
    pub first_token: Option<Duration>,
    /// From its head to its end.
    pub took: Duration,
    /// Bytes of its body.
    pub request_bytes: u64,
    /// Bytes of the answer's body that were handed out for the client.
    pub response_bytes: u64,
    /// What the worker told of tokens at the end of its answer.
    pub tokens: Usage,
    /// Internal fields that were taken out of it.
    pub stripped: Vec<&'static str>,
}

/// The workers that a request was given to, one after the other.
#[derive(Debug, Clone, Default)]
pub struct Attempts {
    /// How many there were; 0 if it came to none.
    pub count: u32,
    /// The last choice.
    pub last: Option<Choice>,
    /// The last choice of a prefill worker, if it was a pair.
    pub prefill: Option<Choice>,
    /// The number of `last` in the record of decisions, if there is one.
    pub noted: Option<u64>,
    /// The prefill/decode pair that it became, if it did.
    pub pair: Option<Paired>,
    /// Where whoever lists the requests under way reads which worker has it.
    pub(crate) place: Option<Arc<Place>>,
}

/// The prefill/decode pair that a request became.
#[derive(Debug, Clone, Copy)]
pub struct Paired {
    /// The id of its last attempt.
    pub room: u64,
    /// How it ended.
    pub outcome: PairOutcome,
}

impl Attempts {
    /// It is given to one more worker. `noted` is the choice's number in the record of decisions.
    pub(crate) fn note(&mut self, choice: Choice, noted: Option<u64>) {
        self.count += 1;
        self.last = Some(choice);
        self.noted = noted;
        if let Some(place) = &self.place {
            place.chose(choice.slot);
        }
    }
}

impl Account {
    /// Of a request whose head has come, and that ends with the client's leaving if nothing else is noted.
    pub(crate) fn open(world: Arc<World>, route: Route) -> Self {
        Self {
            world,
            route,
            id: None,
            trial: None,
            started: Instant::now(),
            model: None,
            attempts: Attempts::default(),
            status: 0,
            streamed: false,
            outcome: Outcome::ClientGoneBeforeHeaders,
            first_byte: None,
            first_token: None,
            took: Duration::ZERO,
            request_bytes: 0,
            response_bytes: 0,
            tokens: Usage::default(),
            stripped: Vec::new(),
        }
    }

    /// As it goes into the record of decisions, behind the note `asked` of the last choice.
    pub(crate) fn noted(&self, asked: u64) -> Ended {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        Ended {
            asked,
            request: self.id.as_ref().map_or(&[][..], HeaderValue::as_bytes).into(),
            outcome: self.outcome.as_str(),
            status: self.status,
            first_token_us: self.first_token.map(micros),
            took_us: micros(self.took),
            prompt_tokens: self.tokens.prompt_tokens,
            cached_tokens: self.tokens.cached_tokens,
            completion_tokens: self.tokens.completion_tokens,
            room: self.attempts.pair.map(|pair| pair.room),
        }
    }

    /// The worker that was asked last.
    pub fn worker(&self) -> Option<&Arc<Worker>> {
        self.chosen(&self.attempts.last?)
    }

    /// The worker of a choice.
    pub(crate) fn chosen(&self, choice: &Choice) -> Option<&Arc<Worker>> {
        self.world.worker(choice.slot)
    }
}

/// What a request tells of itself while it is under way, without a lock.
#[derive(Debug)]
pub(crate) struct Place {
    /// Slot of the worker that it is given to.
    worker: AtomicU32,
}

/// No worker yet.
const NOBODY: u32 = u32::MAX;

impl Default for Place {
    fn default() -> Self {
        Self { worker: AtomicU32::new(NOBODY) }
    }
}

impl Place {
    /// The request was given to this worker.
    pub(crate) fn chose(&self, slot: Slot) {
        self.worker.store(slot.0, Ordering::Relaxed);
    }

    /// It is free for the next request.
    pub(crate) fn clear(&self) {
        self.worker.store(NOBODY, Ordering::Relaxed);
    }

    /// The worker that has the request.
    pub(crate) fn worker(&self) -> Option<Slot> {
        let slot = self.worker.load(Ordering::Relaxed);
        (slot != NOBODY).then_some(Slot(slot))
    }
}

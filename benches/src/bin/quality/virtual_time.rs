//! A run in virtual time: a policy, engine models, closed-loop clients and a queue of events. No clock, no sockets.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use forebay_policy::{
    Ask, Choice, Fleet, HashKey, HashKeyKind, Policy, PolicyKind, PolicySettings, PrefixKey, Slot,
};
use forebay_sim::engine::{Engine, EngineOptions, PromptChain};

use crate::tally::Tally;
use crate::workload::{OUTPUT_TOKENS, Request, Workload};

/// The engine that all runs share.
pub(crate) const ENGINE: EngineOptions = EngineOptions {
    blocks: 6000,
    block_tokens: 16,
    prefill_per_token: Duration::from_micros(20),
    decode_per_token: Duration::from_millis(2),
    max_concurrent: 256,
};

/// What happens in a run beside the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mishap {
    None,
    /// After a third of the requests one worker dies, after half of them another is added, after two thirds the dead
    /// one returns with an empty cache.
    OneLostOneAdded,
}

/// How a run is set up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) policy: PolicyKind,
    pub(crate) workers: usize,
    pub(crate) clients: usize,
    pub(crate) requests: usize,
    pub(crate) mishap: Mishap,
    /// Whether the policy is told how much a worker's cache holds.
    pub(crate) tell_capacity: bool,
    pub(crate) cache_threshold: f64,
    pub(crate) seed: u64,
}

struct VirtualWorker {
    name: String,
    engine: Engine,
    /// Changes when it dies: what was under way is lost.
    life: u64,
    eligible: bool,
    in_flight: Cell<u32>,
    pending: Cell<u64>,
    served: Cell<u64>,
}

struct Workers {
    list: Vec<VirtualWorker>,
    cache_tokens: u64,
    generation: u64,
}

impl Fleet for Workers {
    fn len(&self) -> usize {
        self.list.len()
    }
    fn slot(&self, i: usize) -> Slot {
        Slot(i as u32)
    }
    fn name(&self, i: usize) -> &str {
        &self.list[i].name
    }
    fn eligible(&self, i: usize) -> bool {
        self.list[i].eligible
    }
    fn in_flight(&self, i: usize) -> u32 {
        self.list[i].in_flight.get()
    }
    fn pending_tokens(&self, i: usize) -> u64 {
        self.list[i].pending.get()
    }
    fn cache_tokens(&self, _: usize) -> u64 {
        self.cache_tokens
    }
    fn served(&self, i: usize) -> u64 {
        self.list[i].served.get()
    }
    fn generation(&self) -> u64 {
        self.generation
    }
}

impl Workers {
    fn add(&mut self) {
        self.generation += 1;
        self.list.push(VirtualWorker {
            name: format!("http://worker-{}:8000", self.list.len()),
            engine: Engine::new(ENGINE),
            life: 0,
            eligible: true,
            in_flight: Cell::new(0),
            pending: Cell::new(0),
            served: Cell::new(0),
        });
    }
}

/// A request on a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Leg {
    worker: usize,
    life: u64,
    /// Its share of the worker's pending tokens.
    share: u64,
    client: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Finished(Leg),
    FirstToken(Leg),
    Ask { client: usize },
}

struct Run<'a> {
    plan: &'a Plan,
    policy: Policy,
    workers: Workers,
    workload: Workload,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// Keeps the order of events at one time.
    sequence: u64,
    /// What each client waits for: the request and when it was made.
    waiting: Vec<Option<(Request, u64)>>,
    /// Where each client's request is.
    legs: Vec<Option<Leg>>,
    issued: usize,
    key: PrefixKey,
    tally: Tally,
}

/// Runs to the end.
pub(crate) fn run(plan: &Plan, workload: Workload) -> Tally {
    let mut settings = PolicySettings { kind: plan.policy, ..PolicySettings::default() };
    settings.cache.cache_threshold = plan.cache_threshold;
    let capacity = if plan.tell_capacity { (ENGINE.blocks * ENGINE.block_tokens) as u64 } else { 0 };
    let mut workers = Workers { list: Vec::new(), cache_tokens: capacity, generation: 0 };
    (0..plan.workers).for_each(|_| workers.add());
    let mut run = Run {
        plan,
        policy: Policy::new(&settings, plan.seed),
        workers,
        workload,
        events: BinaryHeap::new(),
        sequence: 0,
        waiting: vec![None; plan.clients],
        legs: vec![None; plan.clients],
        issued: 0,
        key: PrefixKey::new(),
        tally: Tally::default(),
    };
    run.tally.has(plan.workers - 1);
    for client in 0..plan.clients {
        run.at(client as u64 * 100_000, Event::Ask { client });
    }
    while let Some(Reverse((now, _, event))) = run.events.pop() {
        run.happens(now, event);
    }
    run.tally
}

impl Run<'_> {
    fn at(&mut self, when: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((when, self.sequence, event)));
    }

    fn happens(&mut self, now: u64, event: Event) {
        match event {
            Event::Ask { client } => {
                if self.waiting[client].is_none() {
                    if self.issued == self.plan.requests {
                        return;
                    }
                    self.issued += 1;
                    self.mishap(now);
                    self.waiting[client] = Some((self.workload.next(), now));
                }
                self.send(now, client);
            }
            Event::FirstToken(leg) => {
                let worker = &self.workers.list[leg.worker];
                if worker.life == leg.life {
                    worker.pending.set(worker.pending.get() - leg.share);
                    if let Some((_, asked)) = self.waiting[leg.client] {
                        self.tally.answered(leg.worker, now - asked);
                    }
                }
            }
            Event::Finished(leg) => {
                let worker = &self.workers.list[leg.worker];
                if worker.life == leg.life {
                    worker.in_flight.set(worker.in_flight.get() - 1);
                    self.waiting[leg.client] = None;
                    self.legs[leg.client] = None;
                    self.tally.took = now;
                    self.at(now, Event::Ask { client: leg.client });
                }
            }
        }
    }

    fn send(&mut self, now: u64, client: usize) {
        let Some((request, _)) = &self.waiting[client] else { return };
        let text = request.text();
        let mut builder = self.key.builder(0);
        builder.push(text.as_bytes());
        builder.finish();
        let hash = HashKey::new(HashKeyKind::SessionHeader, &request.session.to_le_bytes());
        let ask =
            Ask { prefix: Some(&self.key), hash: Some(hash), now_ms: now / 1_000_000, ..Ask::default() };
        let workers = &self.workers;
        let take = |choice: &Choice| {
            let worker = &workers.list[choice.index];
            worker.in_flight.set(worker.in_flight.get() + 1);
            worker.served.set(worker.served.get() + 1);
            worker.pending.set(worker.pending.get() + u64::from(choice.uncached_tokens));
        };
        let Some((choice, ())) = self.policy.select(&ask, workers, take) else { return };
        let worker = &mut self.workers.list[choice.index];
        let chain = PromptChain::of_text(text.as_bytes(), 0, ENGINE.block_tokens);
        let admission = worker.engine.admit(now, &chain, OUTPUT_TOKENS);
        self.tally.prompt_tokens += chain.tokens;
        self.tally.cached_tokens += admission.cached_tokens;
        let share = u64::from(choice.uncached_tokens);
        let leg = Leg { worker: choice.index, life: worker.life, share, client };
        self.legs[client] = Some(leg);
        self.at(admission.first_token, Event::FirstToken(leg));
        self.at(admission.finish, Event::Finished(leg));
    }

    fn mishap(&mut self, now: u64) {
        if self.plan.mishap == Mishap::None {
            return;
        }
        let (done, all) = (self.issued, self.plan.requests);
        if done == all / 3 {
            let worker = &mut self.workers.list[1];
            worker.life += 1;
            worker.eligible = false;
            worker.engine = Engine::new(ENGINE);
            worker.in_flight.set(0);
            worker.pending.set(0);
            self.policy.forget(Slot(1));
            // What was under way there is asked for again, at once.
            for client in 0..self.plan.clients {
                if self.legs[client].take_if(|leg| leg.worker == 1).is_some() {
                    self.at(now, Event::Ask { client });
                }
            }
        } else if done == all / 2 {
            self.workers.add();
        } else if done == all * 2 / 3 {
            self.workers.list[1].eligible = true;
        }
    }
}

//! The requests of a log on simulated workers, under a policy of choice, at the times at which they came. No clock: the
//! next event comes when the one before is done.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use forebay_policy::{Choice, PolicyKind, PrefixKey};
use forebay_sim::engine::{Engine, PromptChain};
use forebay_workers::note::Seen;

use super::estimate::Estimate;
use super::facts::{Fact, Facts};
use super::judges::Judges;
use super::scene::{Names, Scene, ask, candidates};
use super::table::{Column, Tally};
use crate::decisions::line::{ChoiceLine, Line};
use crate::decisions::reader::{Entry, LogError, LogReader};

/// One policy on the requests of a log.
pub(crate) struct Simulation<'a> {
    kind: PolicyKind,
    estimate: &'a Estimate,
    facts: &'a Facts,
    judges: Judges,
    names: Names,
    /// By slot.
    workers: BTreeMap<u32, SimulatedWorker>,
    /// Times that a slot was chosen in an epoch.
    served: HashMap<(u64, u32), u64>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// Keeps the order of events at one time.
    sequence: u64,
    /// When the first request came, in ms of the log, and what time it is, in ns from then on.
    began_ms: Option<u64>,
    now: u64,
    tally: Tally,
}

struct SimulatedWorker {
    engine: Engine,
    in_flight: u32,
    pending: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    FirstToken { slot: u32, share: u64 },
    Finished { slot: u32, learnt: Option<Learnt> },
}

/// What the end of an answer tells a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Learnt {
    policy: u32,
    bytes: u64,
    tokens: u64,
}

impl<'a> Simulation<'a> {
    pub(crate) fn new(kind: PolicyKind, estimate: &'a Estimate, facts: &'a Facts) -> Self {
        Self {
            kind,
            estimate,
            facts,
            judges: Judges::all(kind),
            names: Names::default(),
            workers: BTreeMap::new(),
            served: HashMap::new(),
            events: BinaryHeap::new(),
            sequence: 0,
            began_ms: None,
            now: 0,
            tally: Tally::default(),
        }
    }

    /// Takes the next line.
    pub(crate) fn take(&mut self, entry: &Entry, reader: &LogReader) -> Result<(), LogError> {
        self.judges.take(&entry.line).map_err(|problem| reader.broken(&problem))?;
        self.names.take(&entry.line);
        match &entry.line {
            Line::Forget { slot, .. } => {
                if let Some(worker) = self.workers.get_mut(slot) {
                    worker.engine.clear_cache();
                }
            }
            Line::Choice(line) if line.attempt == 0 && line.chosen.is_some() => {
                self.comes(line, entry.prefix.as_ref()).map_err(|problem| reader.broken(&problem))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// A request comes.
    fn comes(&mut self, line: &ChoiceLine, prefix: Option<&PrefixKey>) -> Result<(), String> {
        let recorded = candidates(line, prefix)?;
        let began = *self.began_ms.get_or_insert(line.ms);
        self.pass(line.ms.saturating_sub(began).saturating_mul(1_000_000));
        let seen: Vec<Seen> = recorded.into_iter().map(|seen| self.sees(seen, line.epoch)).collect();
        let Some(policy) = self.judges.get(line.policy) else { return Ok(()) };
        let scene = Scene { names: &self.names, seen: &seen, generation: line.generation };
        let question = ask(line, prefix, line.counted);
        if let Some((choice, ())) = policy.select(&question, &scene, |_| ()) {
            self.tally.given(choice.slot.0, seen.iter().map(|seen| seen.slot.0));
            *self.served.entry((line.epoch, choice.slot.0)).or_default() += 1;
            match prefix {
                Some(key) => self.serve(line, key, &choice),
                None => self.pass_through(line, &choice),
            }
        }
        Ok(())
    }

    /// A candidate as it is here: what others did is as recorded, what requests do is not.
    fn sees(&mut self, recorded: Seen, epoch: u64) -> Seen {
        let slot = recorded.slot.0;
        let estimate = self.estimate;
        let worker = self.workers.entry(slot).or_insert_with(|| SimulatedWorker {
            engine: Engine::new(estimate.engine(recorded.cache_tokens)),
            in_flight: 0,
            pending: 0,
        });
        let served = self.served.get(&(epoch, slot)).copied().unwrap_or(0);
        Seen { in_flight: worker.in_flight, pending_tokens: worker.pending, served, ..recorded }
    }

    /// The chosen worker gets a prompt.
    fn serve(&mut self, line: &ChoiceLine, key: &PrefixKey, choice: &Choice) {
        let fact = self.facts.of(line.seq);
        let told = fact.and_then(|fact| fact.prompt_tokens).or(line.counted);
        let tokens = told.unwrap_or_else(|| self.estimate.tokens(key.len_bytes())).max(1);
        let full = (key.len_bytes() / forebay_policy::BLOCK_BYTES as u64) as usize;
        let chain = PromptChain { blocks: key.blocks()[..full.min(key.blocks().len())].to_vec(), tokens };
        let output = self.estimate.output_tokens(fact);
        let (slot, share, now) = (choice.slot.0, u64::from(choice.uncached_tokens), self.now);
        let Some(worker) = self.workers.get_mut(&slot) else { return };
        let admission = worker.engine.admit(now, &chain, output);
        worker.in_flight += 1;
        worker.pending += share;
        self.tally.prompt(Some(tokens), Some(admission.cached_tokens));
        if line.streamed || !self.facts.samples.streams {
            self.tally.first_token_us((admission.first_token - now) / 1000);
        }
        let learns = line.counted.is_none() && choice.key_len > 0;
        let learnt =
            learns.then_some(Learnt { policy: line.policy, bytes: u64::from(choice.key_len), tokens });
        self.at(admission.first_token, Event::FirstToken { slot, share });
        self.at(admission.finish, Event::Finished { slot, learnt });
    }

    /// It gets something else, which takes as long as it did.
    fn pass_through(&mut self, line: &ChoiceLine, choice: &Choice) {
        let took = self.facts.of(line.seq).map_or(0, |fact: &Fact| fact.took_us);
        let slot = choice.slot.0;
        if let Some(worker) = self.workers.get_mut(&slot) {
            worker.in_flight += 1;
            let end = self.now.saturating_add(took.saturating_mul(1000));
            self.at(end, Event::Finished { slot, learnt: None });
        }
    }

    fn at(&mut self, when: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((when, self.sequence, event)));
    }

    /// Time passes, and what is due happens.
    fn pass(&mut self, until: u64) {
        while self.events.peek().is_some_and(|Reverse((when, ..))| *when <= until) {
            if let Some(Reverse((_, _, event))) = self.events.pop() {
                self.happens(event);
            }
        }
        self.now = self.now.max(until);
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::FirstToken { slot, share } => {
                if let Some(worker) = self.workers.get_mut(&slot) {
                    worker.pending -= share;
                }
            }
            Event::Finished { slot, learnt } => {
                if let Some(worker) = self.workers.get_mut(&slot) {
                    worker.in_flight -= 1;
                }
                if let Some(Learnt { policy, bytes, tokens }) = learnt
                    && let Some(policy) = self.judges.get(policy)
                {
                    policy.learn_tokens(bytes, tokens);
                }
            }
        }
    }

    /// What came of it.
    pub(crate) fn end(self, names: &Names) -> Column {
        Column::simulated(&self.tally, self.kind, names)
    }
}

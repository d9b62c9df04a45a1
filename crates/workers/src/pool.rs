//! The workers of one model, and a choice among them with its load. Knows no other pool.

use crate::audit::Invariant;
use crate::by::By;
use crate::frozen::Frozen;
use crate::guard::Guard;
use crate::ledger::Ledger;
use crate::note::{Asked, Asker, Note};
use crate::places::Places;
use crate::tried::Tried;
use crate::worker::Worker;
use forebay_policy::{Ask, Choice, Fleet, Policy, PrefixKey, Slot};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The workers of one model, with the policy that chooses among them.
pub struct Pool {
    pub(crate) model: Arc<str>,
    pub(crate) label: u32,
    pub(crate) generation: u64,
    pub(crate) epoch: u64,
    pub(crate) by: By,
    pub(crate) candidates: Box<[Candidate]>,
    /// Number of each candidate by slot, as [`places_of`] gives it.
    pub(crate) places: Box<[u32]>,
    pub(crate) policy: Arc<Policy>,
    /// The policy's number in the record.
    pub(crate) number: u32,
    /// Where choices are noted, if they are.
    pub(crate) ledger: Option<Arc<Ledger>>,
    /// How many legs a worker may have, if there is a bound.
    pub(crate) bound: Option<Arc<Places>>,
}

/// Most legs that a worker can have. A counter beyond it was lowered below zero.
const MOST_LEGS: u32 = u32::MAX / 2;

/// Stands for no candidate.
const NOBODY: u32 = u32::MAX;

/// A worker as a member of a pool.
pub(crate) struct Candidate {
    pub(crate) worker: Arc<Worker>,
    /// Times it was chosen in this epoch, over all pools.
    pub(crate) served: Arc<AtomicU64>,
}

/// The number of each candidate by slot; [`NOBODY`] for slots of no candidate. Candidates are in slot order.
pub(crate) fn places_of(candidates: &[Candidate]) -> Box<[u32]> {
    let slots = candidates.last().map_or(0, |last| last.worker.slot().0 as usize + 1);
    let mut places = vec![NOBODY; slots].into_boxed_slice();
    for (place, candidate) in (0..).zip(candidates) {
        places[candidate.worker.slot().0 as usize] = place;
    }
    places
}

/// A choice with the load it put on the worker.
pub struct Selected {
    /// The load of the leg to come.
    pub guard: Guard,
    /// What was chosen, and why.
    pub choice: Choice,
    /// Number of its note, if choices are noted.
    pub noted: Option<u64>,
}

/// A choice that was made, or what about it cannot be.
type Taken = Result<Selected, Invariant>;

impl Pool {
    /// The served name, empty for the pools that no single name has.
    pub fn model(&self) -> &Arc<str> {
        &self.model
    }

    /// Small number of the name, never reused for another: the key of cached metric handles.
    pub fn label(&self) -> u32 {
        self.label
    }

    /// The trial that it belongs to.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The members, in slot order.
    pub fn workers(&self) -> impl ExactSizeIterator<Item = &Arc<Worker>> {
        self.candidates.iter().map(|candidate| &candidate.worker)
    }

    /// Whether choices are noted.
    pub fn is_noted(&self) -> bool {
        self.ledger.is_some()
    }

    /// The policy that chooses here.
    pub fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// The bound on the legs of a worker, and who waits, if there is one.
    pub fn bound(&self) -> Option<&Arc<Places>> {
        self.bound.as_ref()
    }

    /// Whether nobody could be chosen for want of a place alone: whether there is a bound, and a worker that was not tried
    /// and could be chosen but for it. Whether that one has a place by now is not asked, since that may have changed.
    pub fn is_full(&self, tried: &Tried, now_ms: u64) -> bool {
        let fits = |worker: &Worker| worker.admits(now_ms) || worker.is_only_paused();
        self.bound.is_some() && self.workers().any(|worker| tried.allows(worker) && fits(worker))
    }

    /// Whether a request for this data-parallel rank can go to a member: one that has it, or whose ranks are its own
    /// business.
    pub fn has_rank(&self, rank: u32) -> bool {
        self.workers().any(|worker| worker.dp_rank().is_none_or(|own| own == rank))
    }

    /// Times the worker was chosen in this epoch.
    pub fn served(&self, slot: Slot) -> u64 {
        let place = self.places.get(slot.0 as usize).and_then(|&place| self.candidates.get(place as usize));
        place.map_or(0, |candidate| candidate.served.load(Ordering::Relaxed))
    }

    /// Chooses a worker that was not tried yet and puts the load on it, in one step.
    ///
    /// # Errors
    /// What was chosen cannot be, or the load that was found there.
    pub fn select(&self, ask: &Ask<'_>, tried: &Tried) -> Result<Option<Selected>, Invariant> {
        self.select_for(Asker::default(), ask, tried)
    }

    /// The same, for a request that the record of decisions names.
    ///
    /// # Errors
    /// As [`Self::select`].
    pub fn select_for(
        &self,
        asker: Asker<'_>,
        ask: &Ask<'_>,
        tried: &Tried,
    ) -> Result<Option<Selected>, Invariant> {
        let most = self.bound.as_ref().map_or(u32::MAX, |places| places.most());
        let view = View { pool: self, tried, now_ms: ask.now_ms, most, only: None, takes_paused: false };
        self.select_from(ask, &view, asker)
            .or_else(|| {
                // Every breaker is open: the least bad worker is asked now and then, so that this ends with its cause.
                let only = Some(self.least_bad(tried, ask.now_ms)?);
                self.select_from(ask, &View { only, ..view }, asker)
            })
            .or_else(|| {
                // Whoever is left asked to be left alone: what it says to that is the client's to know.
                let is_left = self.workers().any(|worker| worker.is_only_paused() && tried.allows(worker));
                is_left.then(|| self.select_from(ask, &View { takes_paused: true, ..view }, asker)).flatten()
            })
            .transpose()
    }

    fn select_from(&self, ask: &Ask<'_>, view: &View<'_>, asker: Asker<'_>) -> Option<Taken> {
        if let Some(ledger) = &self.ledger {
            return self.select_noted(ask, view, asker, ledger);
        }
        let (choice, guard) = self.policy.select(ask, view, |choice| self.take(ask, choice, view.tried))?;
        guard.transpose().map(|guard| guard.map(|guard| Selected { guard, choice, noted: None }))
    }

    /// The same, noted in the order of the choices. The policy sees loads that stand still meanwhile: those of the note.
    fn select_noted(
        &self,
        ask: &Ask<'_>,
        view: &View<'_>,
        asker: Asker<'_>,
        ledger: &Ledger,
    ) -> Option<Taken> {
        let blocks = ask.prefix.map_or(&[][..], PrefixKey::blocks).into();
        let frozen = Frozen::new(view);
        self.policy.decide(ask, &frozen, |decision| {
            let noted = ledger.note(Note::Asked(Box::new(Asked {
                policy: self.number,
                epoch: self.epoch,
                generation: self.generation,
                request: asker.request.into(),
                attempt: asker.attempt,
                now_ms: ask.now_ms,
                streamed: ask.streamed,
                blocks,
                key_bytes: ask.prefix.map_or(0, PrefixKey::len_bytes),
                hash: ask.hash,
                counted: ask.tokens,
                tokens: decision.tokens,
                candidates: frozen.seen(),
                choice: decision.choice,
            })));
            let choice = decision.choice?;
            let guard = self.take(ask, &choice, view.tried).transpose();
            guard.map(|guard| guard.map(|guard| Selected { guard, choice, noted: Some(noted) }))
        })
    }

    /// Puts the load of a choice on its worker, if both can be. (Whether a worker is eligible may change at any time, and
    /// is not asked again.) `None` if another pool has given the worker's last place away meanwhile.
    fn take(&self, ask: &Ask<'_>, choice: &Choice, tried: &Tried) -> Result<Option<Guard>, Invariant> {
        let candidate = self
            .candidates
            .get(choice.index)
            .filter(|candidate| candidate.worker.slot() == choice.slot && !tried.contains(choice.slot));
        let candidate = candidate.ok_or(Invariant::Candidate)?;
        let worker = Arc::clone(&candidate.worker);
        let Some(guard) = Guard::of_choice(worker, choice, ask.streamed, ask.now_ms) else {
            return Ok(None);
        };
        // Its own leg is among them.
        if !(1..=MOST_LEGS).contains(&guard.worker().in_flight()) {
            return Err(Invariant::InFlight);
        }
        candidate.served.fetch_add(1, Ordering::Relaxed);
        candidate.worker.decided(choice.reason);
        candidate.worker.predictions().chosen(choice);
        Ok(Some(guard.heard_in(self.epoch, ask.now_ms)))
    }

    /// Of those that only their breakers keep out, the one whose breaker opened first.
    fn least_bad(&self, tried: &Tried, now_ms: u64) -> Option<usize> {
        let candidates = self.candidates.iter().enumerate();
        let open = candidates.filter(|(_, candidate)| tried.allows(&candidate.worker));
        let open = open.filter_map(|(i, candidate)| Some((candidate.worker.last_resort(now_ms)?, i)));
        open.min().map(|(_, i)| i)
    }
}

/// What the policy sees: the pool less the workers that this request has tried.
#[derive(Clone, Copy)]
struct View<'a> {
    pool: &'a Pool,
    tried: &'a Tried,
    now_ms: u64,
    /// Most legs of a worker.
    most: u32,
    /// Nobody but this one, whatever its breaker says.
    only: Option<usize>,
    /// Also those that asked to be left alone.
    takes_paused: bool,
}

impl Fleet for View<'_> {
    fn len(&self) -> usize {
        self.pool.candidates.len()
    }

    fn slot(&self, i: usize) -> Slot {
        self.pool.candidates[i].worker.slot()
    }

    fn name(&self, i: usize) -> &str {
        self.pool.candidates[i].worker.name()
    }

    fn eligible(&self, i: usize) -> bool {
        let worker = &self.pool.candidates[i].worker;
        self.only.map_or_else(
            || worker.admits(self.now_ms) || (self.takes_paused && worker.is_only_paused()),
            |only| only == i,
        ) && self.tried.allows(worker)
            && (self.most == u32::MAX || worker.in_flight() < self.most)
    }

    fn find(&self, slot: Slot) -> Option<usize> {
        let place = self.pool.places.get(slot.0 as usize)?;
        (*place != NOBODY).then_some(*place as usize)
    }

    fn rank(&self, i: usize) -> u32 {
        self.pool.candidates[i].worker.dp_rank().unwrap_or(0)
    }

    fn group(&self, i: usize) -> u32 {
        self.pool.candidates[i].worker.host().number()
    }

    fn in_flight(&self, i: usize) -> u32 {
        let worker = &self.pool.candidates[i].worker;
        match self.pool.by {
            By::Rank => worker.in_flight(),
            By::Url => worker.in_flight_at_host(),
        }
    }

    fn pending_tokens(&self, i: usize) -> u64 {
        self.pool.candidates[i].worker.pending_tokens(self.now_ms)
    }

    fn cache_tokens(&self, i: usize) -> u64 {
        self.pool.candidates[i].worker.cache_tokens()
    }

    fn served(&self, i: usize) -> u64 {
        self.pool.candidates[i].served.load(Ordering::Relaxed)
    }

    fn generation(&self) -> u64 {
        self.pool.generation
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BreakerSettings, HealthSettings, Models, Reader, ServedModel, registry};
    use forebay_policy::{PolicySettings, Reason};

    /// Two workers that are well.
    fn two() -> Reader {
        let (reader, writer) =
            registry(PolicySettings::default(), 1, HealthSettings::default(), BreakerSettings::default());
        for url in ["http://a:1", "http://b:1"] {
            let host = writer.add(url.parse().unwrap());
            writer.learnt(&host, Models::Any, None);
            writer.probed(&host, true);
        }
        reader
    }

    fn choice(index: usize, slot: u32) -> Choice {
        Choice {
            index,
            slot: Slot(slot),
            reason: Reason::Draw,
            matched: 0,
            key_len: 0,
            prompt_tokens: 0,
            uncached_tokens: 0,
            draw: 0,
        }
    }

    #[test]
    fn a_choice_of_no_candidate_puts_no_load_on_anybody() {
        let world = two().world();
        let (pool, ask) = (world.all(By::Rank), Ask::default());
        let mut tried = Tried::default();
        tried.add(Slot(1));
        for (index, slot) in [(2, 2), (usize::MAX, 0), (0, 1), (1, 1)] {
            let taken = pool.take(&ask, &choice(index, slot), &tried);
            assert_eq!(taken.err(), Some(Invariant::Candidate), "{index} {slot}");
        }
        assert!(pool.workers().all(|worker| worker.started() == 0));
        drop(pool.take(&ask, &choice(0, 0), &tried).unwrap());
        assert_eq!(pool.workers().map(|worker| worker.started()).collect::<Vec<_>>(), [1, 0]);
    }

    /// A worker that may have one leg at a time, and serves two names.
    fn bounded() -> Reader {
        let (reader, writer) =
            registry(PolicySettings::default(), 1, HealthSettings::default(), BreakerSettings::default());
        writer.bound(1);
        let host = writer.add("http://a:1".parse().unwrap());
        let served = ["m", "l"].map(|id| ServedModel {
            id: id.to_owned(),
            parent: None,
            root: None,
            entry: String::new(),
        });
        writer.learnt(&host, Models::Named(served.into()), None);
        writer.probed(&host, true);
        reader
    }

    #[test]
    fn a_place_that_came_free_just_now_is_still_what_was_wanting() {
        let world = bounded().world();
        let (pool, ask, tried) = (world.all(By::Rank), Ask::default(), Tried::default());
        let only = pool.select(&ask, &tried).unwrap().unwrap();
        assert!(pool.select(&ask, &tried).unwrap().is_none());
        drop(only);
        assert!(pool.is_full(&tried, 0), "nobody could be chosen for want of a place, whoever left since");
        let worker = pool.workers().next().unwrap();
        worker.host().pause(60_000);
        assert!(pool.is_full(&tried, 0), "who asked for patience is chosen if there is nobody else");
        worker.host().suspect();
        assert!(!pool.is_full(&tried, 0));
    }

    #[test]
    fn two_pools_of_one_worker_do_not_give_its_last_place_to_both() {
        let (world, legs) = (bounded().world(), AtomicU64::new(0));
        let pools = ["m", "l"].map(|name| world.pool(By::Rank, Some(name)).unwrap());
        std::thread::scope(|scope| {
            for pool in pools {
                let legs = &legs;
                scope.spawn(move || {
                    for _ in 0..200_000 {
                        let Some(leg) = pool.select(&Ask::default(), &Tried::default()).unwrap() else {
                            continue;
                        };
                        assert_eq!(legs.fetch_add(1, Ordering::SeqCst), 0, "one leg at a time");
                        legs.fetch_sub(1, Ordering::SeqCst);
                        drop(leg);
                    }
                });
            }
        });
    }

    #[test]
    fn a_load_below_zero_is_told_instead_of_chosen_by() {
        let world = two().world();
        let pool = world.all(By::Rank);
        for worker in pool.workers() {
            worker.in_flight.fetch_sub(1, Ordering::SeqCst);
        }
        let broken = pool.select(&Ask::default(), &Tried::default());
        assert_eq!(broken.err(), Some(Invariant::InFlight));
        for worker in pool.workers() {
            worker.in_flight.fetch_add(1, Ordering::SeqCst);
        }
        assert!(pool.select(&Ask::default(), &Tried::default()).unwrap().is_some());
    }
}

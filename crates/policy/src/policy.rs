//! The policies behind one lock: choice and guard are made in one step.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::cache_aware::CacheAware;
use crate::choice::{Ask, Choice, Decision, Pick};
use crate::consistent_hash::ConsistentHash;
use crate::draws::Draw;
use crate::fleet::{Fleet, Slot};
use crate::groups::Loads;
use crate::key::PrefixKey;
use crate::ratio::TokenRatio;
use crate::round_robin::RoundRobin;
use crate::settings::{LoadKind, PolicyKind, PolicySettings};
use crate::{least_loaded, power_of_two, random};

/// A policy with its state. One for each pool; a reset is a new one.
#[derive(Debug)]
pub struct Policy {
    kind: PolicyKind,
    seed: u64,
    ratio: TokenRatio,
    state: OwnLine<Mutex<State>>,
}

/// A cache line to itself: whoever waits for the lock must not slow down who reads what is beside it.
#[derive(Debug)]
#[repr(align(64))]
struct OwnLine<T>(T);

#[derive(Debug)]
struct State {
    choices: u64,
    loads: Loads,
    rule: Rule,
}

#[derive(Debug)]
enum Rule {
    CacheAware(Box<CacheAware>),
    PowerOfTwo,
    ConsistentHash(ConsistentHash),
    RoundRobin(RoundRobin),
    Random,
    LeastLoaded,
}

impl Policy {
    /// A policy that has seen nothing. Equal seeds and equal questions in equal order give equal choices.
    /// Settings are used as they are: [`PolicySettings::validate`] comes before.
    #[must_use]
    pub fn new(settings: &PolicySettings, seed: u64) -> Self {
        let rule = match settings.kind {
            PolicyKind::CacheAware => Rule::CacheAware(Box::new(CacheAware::new(&settings.cache))),
            PolicyKind::PowerOfTwo => Rule::PowerOfTwo,
            PolicyKind::ConsistentHash => Rule::ConsistentHash(ConsistentHash::default()),
            PolicyKind::RoundRobin => Rule::RoundRobin(RoundRobin::default()),
            PolicyKind::Random => Rule::Random,
            PolicyKind::LeastLoaded => Rule::LeastLoaded,
        };
        let state = OwnLine(Mutex::new(State {
            choices: 0,
            loads: Loads::new(settings.load, settings.group_weight),
            rule,
        }));
        Self { kind: settings.kind, seed, ratio: TokenRatio::default(), state }
    }

    /// Chooses an eligible worker and lets `take` make its in-flight guard before anybody else may choose, so
    /// a burst never sees equal loads. `None` if no worker is eligible; `take` is not called then.
    ///
    /// `take` runs under the lock of the policy: it must be short and must not call the policy.
    pub fn select<F: Fleet, G>(
        &self,
        ask: &Ask<'_>,
        fleet: &F,
        take: impl FnOnce(&Choice) -> G,
    ) -> Option<(Choice, G)> {
        self.decide(ask, fleet, |decision| decision.choice.map(|choice| (choice, take(&choice))))
    }

    /// As [`Policy::select`], for whoever keeps a record: `end` hears of every decision, also that nobody could be
    /// chosen, in the order in which the state of the policy changed. It runs under the lock of the policy as well.
    pub fn decide<F: Fleet, G>(&self, ask: &Ask<'_>, fleet: &F, end: impl FnOnce(&Decision) -> G) -> G {
        let mut state = self.lock();
        let tokens = self.tokens(ask);
        let choice = state.choose(&Ask { tokens: Some(tokens), ..*ask }, fleet, self.seed);
        end(&Decision { choice, tokens })
    }

    /// What the worker had cached is gone (restart, reset, other weights): its prefixes match no more.
    pub fn forget(&self, slot: Slot) {
        self.forget_and(slot, || ());
    }

    /// As [`Policy::forget`]; `then` runs before anybody else may choose.
    pub fn forget_and(&self, slot: Slot, then: impl FnOnce()) {
        let mut state = self.lock();
        if let Rule::CacheAware(cache_aware) = &mut state.rule {
            cache_aware.forget(slot);
        }
        then();
    }

    /// A worker counted a prompt whose routing text has `bytes` as `tokens`. Makes later estimates better; not
    /// for prompts of token ids, which count themselves.
    pub fn learn_tokens(&self, bytes: u64, tokens: u64) {
        self.ratio.learn(bytes, tokens);
    }

    /// Tokens in so many bytes of routing text, as far as is known.
    #[must_use]
    pub fn estimated_tokens(&self, bytes: u64) -> u64 {
        self.ratio.tokens(bytes)
    }

    /// Memory of the prefix tree, in bytes; 0 for policies that keep none.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        match &self.lock().rule {
            Rule::CacheAware(cache_aware) => cache_aware.resident_bytes(),
            Rule::PowerOfTwo
            | Rule::ConsistentHash(_)
            | Rule::RoundRobin(_)
            | Rule::Random
            | Rule::LeastLoaded => 0,
        }
    }

    /// Choices made so far.
    #[must_use]
    pub fn choices(&self) -> u64 {
        self.lock().choices
    }

    /// Which policy this is.
    #[must_use]
    pub const fn kind(&self) -> PolicyKind {
        self.kind
    }

    /// Name of the policy, as in the settings.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.kind.as_str()
    }

    /// Tokens of the prompt, counted or estimated.
    fn tokens(&self, ask: &Ask<'_>) -> u64 {
        ask.tokens.unwrap_or_else(|| self.ratio.tokens(ask.prefix.map_or(0, PrefixKey::len_bytes)))
    }

    /// A panic in somebody's `take` must not stop the routing: every state in between is usable.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn capped(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

impl State {
    fn choose<F: Fleet>(&mut self, ask: &Ask<'_>, fleet: &F, seed: u64) -> Option<Choice> {
        let mut draw = Draw::new(seed, self.choices);
        let mut pick = self.rule.pick(ask, fleet, &mut self.loads, &mut draw)?;
        if self.loads.kind() == LoadKind::Tokens && pick.prompt_tokens == 0 {
            // A load in tokens has to be known of every choice, also of one that did not look at the prompt.
            let tokens = ask.tokens.unwrap_or(0);
            (pick.prompt_tokens, pick.uncached_tokens) = (tokens, tokens);
        }
        let choice = Choice {
            index: pick.index,
            slot: fleet.slot(pick.index),
            reason: pick.reason,
            matched: capped(pick.matched),
            key_len: capped(pick.key_len),
            prompt_tokens: capped(pick.prompt_tokens),
            uncached_tokens: capped(pick.uncached_tokens),
            draw: self.choices,
        };
        self.choices += 1;
        Some(choice)
    }
}

impl Rule {
    fn pick<F: Fleet>(
        &mut self,
        ask: &Ask<'_>,
        fleet: &F,
        loads: &mut Loads,
        draw: &mut Draw,
    ) -> Option<Pick> {
        match self {
            Self::CacheAware(cache_aware) => cache_aware.pick(ask, fleet, loads.groups(), draw),
            Self::PowerOfTwo => power_of_two::pick(fleet, loads, draw),
            Self::ConsistentHash(ring) => ring.pick(ask.hash, fleet, draw),
            Self::RoundRobin(rotation) => rotation.pick(fleet),
            Self::Random => random::pick(fleet, draw),
            Self::LeastLoaded => least_loaded::pick(fleet, loads, draw),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use proptest::prelude::*;

    use super::*;
    use crate::choice::Reason;
    use crate::key::{HashKey, HashKeyKind, PrefixKey};
    use crate::testing::Sample;

    fn policy(kind: PolicyKind, seed: u64) -> Policy {
        Policy::new(&PolicySettings { kind, ..PolicySettings::default() }, seed)
    }

    fn key_of(text: &[u8]) -> PrefixKey {
        let mut key = PrefixKey::new();
        let mut builder = key.builder(0);
        builder.push(text);
        builder.finish();
        key
    }

    /// Choices of a burst of different prompts, all kept in flight.
    fn burst(policy: &Policy, fleet: &Sample, count: u32) -> Vec<Choice> {
        (0..count)
            .map(|i| {
                let prefix = key_of(&i.to_le_bytes());
                let hash = (i % 3 != 0).then(|| HashKey::new(HashKeyKind::Body, &i.to_le_bytes()));
                let ask = Ask { prefix: Some(&prefix), hash, now_ms: u64::from(i), ..Ask::default() };
                policy.select(&ask, fleet, |choice| fleet.take(choice.index)).unwrap().0
            })
            .collect()
    }

    #[test]
    fn a_policy_can_be_shared_between_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<Policy>();
    }

    #[test]
    fn a_burst_of_new_prompts_fills_an_idle_fleet_evenly() {
        for kind in [PolicyKind::CacheAware, PolicyKind::RoundRobin] {
            let fleet = Sample::new(10);
            burst(&policy(kind, 1), &fleet, 100);
            assert!(fleet.workers.iter().all(|worker| worker.in_flight.get() == 10), "{kind}");
        }
        let fleet = Sample::new(10);
        burst(&policy(PolicyKind::PowerOfTwo, 1), &fleet, 100);
        assert!(fleet.workers.iter().all(|worker| (6..=13).contains(&worker.in_flight.get())));
    }

    #[test]
    fn requests_that_never_overlap_are_spread_as_well() {
        let (fleet, policy) = (Sample::new(4), policy(PolicyKind::CacheAware, 1));
        for i in 0..40_u32 {
            let prefix = key_of(&i.to_le_bytes());
            let ask = Ask { prefix: Some(&prefix), ..Ask::default() };
            let (choice, ()) = policy.select(&ask, &fleet, |choice| fleet.take(choice.index)).unwrap();
            fleet.workers[choice.index].in_flight.set(0);
        }
        assert!(fleet.workers.iter().all(|worker| worker.served.get() == 10));
    }

    #[test]
    fn another_seed_gives_another_order() {
        for kind in [PolicyKind::CacheAware, PolicyKind::PowerOfTwo, PolicyKind::Random] {
            let order = |seed| -> Vec<usize> {
                burst(&policy(kind, seed), &Sample::new(10), 50).iter().map(|choice| choice.index).collect()
            };
            assert_ne!(order(1), order(2), "{kind}");
        }
    }

    #[test]
    fn a_panic_in_take_does_not_stop_the_policy() {
        let (fleet, policy) = (Sample::new(2), policy(PolicyKind::RoundRobin, 1));
        let caught =
            catch_unwind(AssertUnwindSafe(|| policy.select(&Ask::default(), &fleet, |_| panic!("guard"))));
        assert!(caught.is_err());
        assert!(policy.select(&Ask::default(), &fleet, |_| ()).is_some());
    }

    #[test]
    fn only_the_prefix_tree_has_a_size() {
        for kind in PolicyKind::ALL {
            let policy = policy(kind, 1);
            let before = policy.resident_bytes();
            burst(&policy, &Sample::new(2), 100);
            assert_eq!(policy.resident_bytes() > before, kind == PolicyKind::CacheAware);
            assert_eq!(policy.name(), kind.as_str());
            policy.forget(Slot(0));
        }
    }

    proptest! {
        #[test]
        fn a_seed_replays_a_trial(seed in any::<u64>(), size in 1_u32..20, ineligible in any::<u32>()) {
            for kind in PolicyKind::ALL {
                let fleet = || {
                    let mut fleet = Sample::new(size);
                    for (i, worker) in fleet.workers.iter_mut().enumerate().skip(1) {
                        worker.eligible = ineligible >> i & 1 == 0;
                    }
                    fleet
                };
                let (one, two) = (fleet(), fleet());
                let choices = burst(&policy(kind, seed), &one, 60);
                prop_assert_eq!(&choices, &burst(&policy(kind, seed), &two, 60));
                prop_assert!(choices.iter().all(|choice| one.workers[choice.index].eligible));
                prop_assert!(choices.iter().map(|choice| choice.draw).eq(0..60));
                let key_read = choices.iter().all(|choice| choice.key_len == 4);
                prop_assert_eq!(key_read, kind == PolicyKind::CacheAware);
                let rotates = choices.iter().all(|choice| choice.reason == Reason::Rotation);
                prop_assert_eq!(rotates, kind == PolicyKind::RoundRobin);
            }
        }
    }
}

//! The rule: who gets a prompt, and why.

use proptest::prelude::*;

use super::*;
use crate::testing::Sample;

struct Setup {
    policy: CacheAware,
    fleet: Sample,
    draws: u64,
}

impl Setup {
    fn new(workers: u32) -> Self {
        Self::with(workers, &CacheAwareSettings::default())
    }

    fn with(workers: u32, settings: &CacheAwareSettings) -> Self {
        Self { policy: CacheAware::new(settings), fleet: Sample::new(workers), draws: 0 }
    }

    /// Chooses and keeps the request in flight.
    fn send(&mut self, text: &[u8]) -> Pick {
        let pick = self.choose(text).unwrap();
        self.fleet.take(pick.index);
        pick
    }

    fn choose(&mut self, text: &[u8]) -> Option<Pick> {
        let mut key = PrefixKey::new();
        let mut builder = key.builder(0);
        builder.push(text);
        builder.finish();
        self.draws += 1;
        let tokens = Some(text.len() as u64 / 4);
        let ask = Ask { prefix: Some(&key), tokens, ..Ask::default() };
        self.policy.pick(&ask, &self.fleet, &mut Groups::new(0.0), &mut Draw::new(42, self.draws))
    }

    fn pend(&self, index: usize, tokens: u64) {
        self.fleet.workers[index].pending_tokens.set(tokens);
    }

    fn load(&self, index: usize, in_flight: u32) {
        self.fleet.workers[index].in_flight.set(in_flight);
    }
}

#[test]
fn a_prompt_returns_to_its_holder_although_others_are_less_loaded() {
    let mut setup = Setup::new(4);
    let text = [b'a'; 4000];
    let first = setup.send(&text);
    assert_eq!((first.reason, first.matched, first.key_len), (Reason::MissLeastCost, 0, 4000));
    assert_eq!((first.prompt_tokens, first.uncached_tokens), (1000, 1000));
    for _ in 0..20 {
        let again = setup.send(&text);
        assert_eq!((again.index, again.reason, again.matched), (first.index, Reason::PrefixHit, 4000));
        assert_eq!((again.prompt_tokens, again.uncached_tokens), (1000, 1));
    }
}

#[test]
fn a_burst_of_equal_prompts_follows_the_first_while_that_one_is_computed() {
    let mut setup = Setup::new(4);
    let text = [b'a'; 4000];
    let first = setup.send(&text);
    setup.pend(first.index, first.uncached_tokens);
    for _ in 0..30 {
        assert_eq!(setup.send(&text).index, first.index);
    }
}

#[test]
fn a_holder_is_left_when_its_queue_is_longer_than_the_prefix_is_worth() {
    for (pending, reason) in [(3900, Reason::PrefixHit), (4100, Reason::SpillLoad)] {
        let mut setup = Setup::new(2);
        let text = [b'a'; 4000];
        let holder = setup.choose(&text).unwrap().index;
        setup.pend(holder, pending);
        let pick = setup.choose(&text).unwrap();
        assert_eq!(pick.reason, reason, "{pending}");
        assert_eq!(pick.index == holder, reason == Reason::PrefixHit);
    }
}

#[test]
fn a_prefix_whose_holder_always_has_a_queue_gets_another_holder_and_both_are_used() {
    let mut setup = Setup::new(4);
    let mut text = [b'a'; 17_000];
    let holder = setup.choose(&text[..16_000]).unwrap().index;
    let mut homes = [0; 4];
    for tail in 0..60 {
        text[16_000..].fill(tail);
        // Far less than the prefix is worth, but always.
        setup.pend(holder, 1000);
        homes[setup.choose(&text).unwrap().index] += 1;
    }
    assert!(homes[holder] > 5 && homes.iter().filter(|&&count| count > 5).count() >= 2, "{homes:?}");
}

#[test]
fn prompts_that_share_only_their_first_words_are_spread_over_an_idle_fleet() {
    let mut setup = Setup::new(4);
    let mut homes = [0; 4];
    for tail in 0..40 {
        let mut text = [tail; 6400];
        text[..640].fill(b'a');
        let pick = setup.choose(&text).unwrap();
        setup.fleet.take(pick.index);
        setup.load(pick.index, 0);
        assert_eq!(pick.reason, Reason::MissLeastCost);
        homes[pick.index] += 1;
    }
    assert!(homes.iter().all(|home| (9..=11).contains(home)), "{homes:?}");
}

#[test]
fn what_a_worker_of_known_capacity_must_have_dropped_attracts_nobody() {
    let mut setup = Setup::new(2);
    for worker in &mut setup.fleet.workers {
        worker.cache_tokens = 10_000;
    }
    setup.fleet.workers[1].eligible = false;
    for prompt in 0..40 {
        setup.choose(&[prompt; 4000]).unwrap();
    }
    setup.fleet.workers[1].eligible = true;
    setup.load(0, 1);
    let held: Vec<u8> = (0..40)
        .rev()
        .take_while(|&prompt| setup.choose(&[prompt; 4000]).unwrap().reason == Reason::PrefixHit)
        .collect();
    assert!((9..=10).contains(&held.len()), "{held:?}");
}

#[test]
fn a_share_of_exactly_the_threshold_is_a_miss_and_one_block_more_a_hit() {
    for (blocks, reason) in [(5, Reason::MissLeastCost), (6, Reason::PrefixHit)] {
        let settings = CacheAwareSettings { cache_threshold: 0.5, ..CacheAwareSettings::default() };
        let mut setup = Setup::with(2, &settings);
        let mut text = vec![b'a'; 640];
        let holder = setup.send(&text[..blocks * 64]).index;
        setup.load(holder, 20);
        text[blocks * 64..].fill(b'b');
        let pick = setup.send(&text);
        assert_eq!(pick.reason, reason);
        assert_eq!(pick.index == holder, reason == Reason::PrefixHit);
    }
}

#[test]
fn the_longest_match_wins_and_of_equals_the_less_loaded() {
    let mut setup = Setup::new(3);
    let text = [b'a'; 1280];
    for (busy, len) in [([0, 1, 1], 640), ([9, 0, 9], 1280), ([9, 9, 0], 1280)] {
        for (i, load) in busy.into_iter().enumerate() {
            setup.load(i, load);
        }
        // Each worker is made the only eligible one, so that it becomes a holder of that much.
        let target = busy.iter().position(|&load| load == 0).unwrap();
        for (i, worker) in setup.fleet.workers.iter_mut().enumerate() {
            worker.eligible = i == target;
        }
        assert_eq!(setup.choose(&text[..len]).unwrap().reason, Reason::OnlyCandidate);
    }
    for worker in &mut setup.fleet.workers {
        worker.eligible = true;
    }
    for (loads, expected) in [([0, 5, 6], 1), ([0, 6, 5], 2)] {
        for (i, load) in loads.into_iter().enumerate() {
            setup.load(i, load);
        }
        let pick = setup.choose(&text).unwrap();
        assert_eq!((pick.index, pick.reason), (expected, Reason::PrefixHit));
    }
    // The two with the whole prompt are gone: the one with half of it is next, not the first of the list.
    setup.fleet.workers[1].eligible = false;
    setup.fleet.workers[2].eligible = false;
    setup.fleet.workers[0].eligible = true;
    setup.fleet = {
        let mut larger = Sample::new(5);
        larger.workers[1].eligible = false;
        larger.workers[2].eligible = false;
        larger.workers[0].in_flight.set(3);
        larger
    };
    let pick = setup.choose(&text).unwrap();
    assert_eq!((pick.index, pick.reason, pick.matched), (0, Reason::PrefixHit, 640));
}

#[test]
fn only_a_holder_beyond_both_thresholds_is_passed_over() {
    let settings =
        CacheAwareSettings { balance_abs_threshold: 10, balance_rel_threshold: 2.0, ..Default::default() };
    for (holder_load, other_load, reason) in [
        (10, 0, Reason::PrefixHit),  // not beyond the absolute
        (11, 0, Reason::SpillLoad),  // beyond both
        (40, 20, Reason::PrefixHit), // not beyond the relative
        (41, 20, Reason::SpillLoad), // beyond both
        (0, 50, Reason::PrefixHit),
    ] {
        let mut setup = Setup::with(2, &settings);
        let text = [b'a'; 500];
        let holder = setup.choose(&text).unwrap().index;
        setup.load(holder, holder_load);
        setup.load(1 - holder, other_load);
        let pick = setup.choose(&text).unwrap();
        assert_eq!(pick.reason, reason, "{holder_load} against {other_load}");
        assert_eq!(pick.index == holder, reason == Reason::PrefixHit);
    }
}

#[test]
fn the_target_of_a_spill_becomes_a_holder() {
    let mut setup = Setup::new(3);
    let text = [b'a'; 500];
    let holder = setup.choose(&text).unwrap().index;
    setup.load(holder, 100);
    let spill = setup.choose(&text).unwrap();
    assert_eq!((spill.reason, spill.matched), (Reason::SpillLoad, 0));
    setup.load(spill.index, 20);
    let again = setup.choose(&text).unwrap();
    assert_eq!((again.index, again.reason), (spill.index, Reason::PrefixHit));
}

#[test]
fn prompts_of_a_holder_that_is_not_eligible_are_spread_not_herded() {
    let mut setup = Setup::new(5);
    let mut homes = [0; 5];
    setup.fleet.workers[0].eligible = true;
    for worker in &mut setup.fleet.workers[1..] {
        worker.eligible = false;
    }
    for i in 0..40_u8 {
        setup.choose(&[i; 300]).unwrap();
    }
    for worker in &mut setup.fleet.workers {
        worker.eligible = !worker.eligible;
    }
    for i in 0..40_u8 {
        let pick = setup.send(&[i; 300]);
        assert_eq!(pick.reason, Reason::MissLeastCost);
        homes[pick.index] += 1;
    }
    assert_eq!(homes, [0, 10, 10, 10, 10]);
}

#[test]
fn a_forgotten_worker_holds_nothing_until_it_serves_again() {
    let mut setup = Setup::new(2);
    let text = [b'a'; 500];
    let holder = setup.choose(&text).unwrap().index;
    setup.policy.forget(Slot(holder as u32));
    setup.load(holder, 20);
    let pick = setup.choose(&text).unwrap();
    assert_eq!((pick.index, pick.reason), (1 - holder, Reason::MissLeastCost));
}

#[test]
fn a_slot_keeps_its_prefixes_when_others_leave_and_indices_shift() {
    let mut setup = Setup::new(4);
    let text = [b'a'; 500];
    for i in [0, 1, 2] {
        setup.load(i, 20);
    }
    assert_eq!(setup.choose(&text).unwrap().index, 3);
    setup.fleet = Sample::with_slots(&[0, 2, 3]);
    let pick = setup.choose(&text).unwrap();
    assert_eq!((pick.index, pick.reason), (2, Reason::PrefixHit));
}

#[test]
fn without_a_prompt_the_least_loaded_is_chosen() {
    let mut setup = Setup::new(3);
    setup.load(0, 2);
    setup.load(1, 1);
    setup.load(2, 2);
    let pick = setup
        .policy
        .pick(&Ask::default(), &setup.fleet, &mut Groups::new(0.0), &mut Draw::new(0, 0))
        .unwrap();
    assert_eq!(pick, Pick::plain(1, Reason::MissLeastCost));
    let empty = setup.choose(b"").unwrap();
    assert_eq!(empty, Pick::plain(1, Reason::MissLeastCost));
}

#[test]
fn nobody_eligible_is_no_choice() {
    let mut setup = Setup::new(2);
    for worker in &mut setup.fleet.workers {
        worker.eligible = false;
    }
    assert_eq!(setup.choose(b"hello"), None);
}

proptest! {
    #[test]
    fn whatever_happens_the_chosen_is_eligible_and_the_match_no_longer_than_the_prompt(
        sends in prop::collection::vec((0_u8..3, 1_usize..700, any::<u8>(), 0_u32..200), 1..60),
    ) {
        let mut setup = Setup::new(8);
        for (block, len, eligible, load) in sends {
            for (i, worker) in setup.fleet.workers.iter_mut().enumerate() {
                worker.eligible = eligible >> i & 1 == 1;
            }
            setup.load(len % 8, load);
            let pick = setup.choose(&vec![block; len]);
            prop_assert_eq!(pick.is_none(), eligible == 0);
            if let Some(pick) = pick {
                prop_assert!(setup.fleet.workers[pick.index].eligible);
                prop_assert!(pick.matched <= pick.key_len && pick.key_len == len as u64);
                let only = pick.reason == Reason::OnlyCandidate;
                prop_assert_eq!(only, eligible.count_ones() == 1);
            }
        }
    }
}

//! The tree against a naive model, and its invariants after every step.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use proptest::prelude::*;

use super::*;
use crate::key::PrefixKey;
use model::{Action, Model, prompts, steps};

mod capacity;
mod model;

const AMPLE: usize = 64 << 20;

/// The chain of a prompt whose blocks are named by bytes.
fn chain(blocks: &[u8]) -> Vec<u64> {
    let mut key = PrefixKey::new();
    let mut builder = key.builder(0);
    for &block in blocks {
        builder.push(&[block; 64]);
    }
    builder.finish();
    key.blocks().to_vec()
}

/// Longest match of each holder.
fn matches(tree: &mut Tree, blocks: &[u8], now_ms: u64) -> BTreeMap<u32, usize> {
    tree.descend(&chain(blocks), now_ms);
    let mut longest = BTreeMap::new();
    for level in tree.levels() {
        for slot in level.slots() {
            longest.entry(slot.0).or_insert(level.blocks);
        }
    }
    for (&slot, &blocks) in &longest {
        assert_eq!(tree.blocks_held_by(Slot(slot)), blocks);
    }
    longest
}

fn insert(tree: &mut Tree, blocks: &[u8], slot: u32, now_ms: u64) {
    let key = chain(blocks);
    tree.descend(&key, now_ms);
    tree.record(&key, Slot(slot), None);
}

/// What must hold between two calls, even if hashes collide.
fn check_weight(tree: &Tree) -> Vec<u32> {
    assert!(tree.resident_bytes() <= tree.bound, "{} > {}", tree.resident_bytes(), tree.bound);
    let used: Vec<u32> = (0..tree.arena.numbers()).filter(|&id| tree.arena.get(id).is_used()).collect();
    assert_eq!(tree.arena.used(), used.len());
    let heap: usize = used.iter().map(|&id| tree.arena.get(id).heap_bytes()).sum();
    assert_eq!(tree.heap, heap);
    assert_eq!(tree.index.bytes(), tree.index.counted_bytes());
    used
}

/// Everything that must hold between two calls.
fn check(tree: &Tree) {
    let used = check_weight(tree);
    let mut children = HashMap::new();
    for &id in &used {
        let node = tree.arena.get(id);
        assert_eq!(tree.index.get(node.first, &tree.arena), Some(id));
        assert_eq!((node.run[0], node.run[node.run.len() - 1]), (node.first, node.last));
        if node.parent != NONE {
            assert!(tree.arena.get(node.parent).is_used());
            *children.entry(node.parent).or_insert(0) += 1;
            let above: BTreeSet<_> = tree.arena.get(node.parent).holders.live(&tree.liveness).collect();
            assert!(node.holders.live(&tree.liveness).all(|slot| above.contains(&slot)));
        }
    }
    let listed = listed(tree);
    for &id in &used {
        assert_eq!(tree.arena.get(id).children, children.get(&id).copied().unwrap_or(0));
        assert!(tree.arena.get(id).children > 0 || listed.contains(&id));
        assert_eq!(tree.arena.get(id).is_listed, listed.contains(&id));
    }
}

/// The numbers that have an entry in the queue, each once.
fn listed(tree: &Tree) -> BTreeSet<u32> {
    let ids: Vec<u32> = tree.recency.listed().collect();
    let set: BTreeSet<u32> = ids.iter().copied().collect();
    assert_eq!(set.len(), ids.len());
    set
}

/// Last use and number of every leaf.
fn leaves(tree: &Tree) -> BTreeSet<(u64, u32)> {
    let used = (0..tree.arena.numbers()).filter(|&id| tree.arena.get(id).is_used());
    let leaves = used.filter(|&id| tree.arena.get(id).children == 0);
    leaves.map(|id| (tree.arena.get(id).holders.last_use(), id)).collect()
}

/// Runs the same steps on tree and model; `compare` gets the matches of both.
fn replay(
    bound: usize,
    steps: &[Action],
    compare: impl Fn(&BTreeMap<u32, usize>, &BTreeMap<u32, usize>) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let mut tree = Tree::new(bound, Model::PERIOD_MS / 1000);
    let mut model = Model::default();
    let mut now_ms = 5;
    for step in steps {
        match step {
            Action::Insert(prompt, slot) => {
                model.access(now_ms);
                compare(&matches(&mut tree, prompt, now_ms), &model.matches(prompt))?;
                tree.record(&chain(prompt), Slot(*slot), None);
                model.insert(prompt, *slot);
            }
            Action::Match(prompt) => {
                model.access(now_ms);
                compare(&matches(&mut tree, prompt, now_ms), &model.matches(prompt))?;
            }
            Action::Forget(slot) => {
                tree.forget(Slot(*slot));
                model.forget(*slot);
            }
            Action::Wait(ms) => now_ms += ms,
            Action::Clear => {
                tree.clear();
                model.prefixes.clear();
            }
        }
        check(&tree);
    }
    Ok(())
}

proptest! {
    // 100 000 steps in all.
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// The model is told what was evicted, and only that. (With less room than this, a node cannot always be split.)
    #[test]
    fn with_little_room_the_tree_knows_exactly_what_the_model_knows_less_what_was_evicted(
        bound in 8_000_usize..20_000,
        steps in steps(400),
    ) {
        let (mut tree, mut model) = (Tree::new(bound, Model::PERIOD_MS / 1000), Model::default());
        let mut now_ms = 5;
        for step in &steps {
            match step {
                Action::Insert(prompt, _) | Action::Match(prompt) => {
                    model.access(now_ms);
                    tree.descend(&chain(prompt), now_ms);
                    model.evict(&tree)?;
                    prop_assert_eq!(matches(&mut tree, prompt, now_ms), model.matches(prompt));
                    if let Action::Insert(prompt, slot) = step {
                        tree.record(&chain(prompt), Slot(*slot), None);
                        model.insert(prompt, *slot);
                        model.evict(&tree)?;
                    }
                }
                Action::Forget(slot) => {
                    tree.forget(Slot(*slot));
                    model.forget(*slot);
                    model.evict(&tree)?;
                }
                Action::Wait(ms) => now_ms += ms,
                Action::Clear => {
                    tree.clear();
                    model.prefixes.clear();
                }
            }
            check(&tree);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn with_ample_room_the_tree_knows_exactly_what_the_model_knows(steps in steps(120)) {
        replay(AMPLE, &steps, |tree, model| {
            prop_assert_eq!(tree, model);
            Ok(())
        })?;
    }

    #[test]
    fn with_little_room_the_tree_invents_nothing_and_keeps_its_bound(
        bound in 4_500_usize..16_000,
        steps in steps(200),
    ) {
        replay(bound, &steps, |tree, model| {
            for (slot, blocks) in tree {
                prop_assert!(model.get(slot).is_some_and(|most| blocks <= most));
            }
            Ok(())
        })?;
    }

    #[test]
    fn keys_that_are_no_chains_at_all_do_no_harm(
        bound in 4_500_usize..16_000,
        keys in prop::collection::vec((prop::collection::vec(0_u64..9, 1..40), 0_u32..6), 1..200),
    ) {
        let mut tree = Tree::new(bound, 0);
        for (i, (key, slot)) in keys.into_iter().enumerate() {
            tree.descend(&key, 0);
            prop_assert!(tree.levels().all(|level| level.blocks <= key.len()));
            tree.record(&key, Slot(slot), None);
            if i % 50 == 49 {
                tree.forget(Slot(slot));
            }
            check_weight(&tree);
        }
    }

    /// Except that the node to which something is being added is spared, which is why nothing is here.
    #[test]
    fn leaves_are_evicted_in_the_order_of_their_last_use(
        rounds in prop::collection::vec(
            (prop::collection::vec((prompts(), 0_u32..4), 1..40), 0_usize..30),
            1..6,
        ),
    ) {
        let mut tree = Tree::new(AMPLE, 0);
        for (inserts, evictions) in rounds {
            for (prompt, slot) in inserts {
                insert(&mut tree, &prompt, slot, 0);
            }
            tree.path.clear();
            for _ in 0..evictions {
                let oldest = leaves(&tree).into_iter().min();
                prop_assert_eq!(tree.evict_one(), oldest.is_some());
                prop_assert!(oldest.is_none_or(|oldest| !leaves(&tree).contains(&oldest)));
                check(&tree);
            }
        }
    }
}

#[test]
fn a_prompt_is_found_again_and_its_common_part_with_others_too() {
    let mut tree = Tree::new(AMPLE, 0);
    insert(&mut tree, &[1, 2, 3, 4, 5], 7, 0);
    insert(&mut tree, &[1, 2, 9], 8, 0);
    assert_eq!(matches(&mut tree, &[1, 2, 3, 4, 5, 6], 0), [(7, 5), (8, 2)].into());
    assert_eq!(matches(&mut tree, &[1, 2, 9, 9], 0), [(7, 2), (8, 3)].into());
    assert_eq!(matches(&mut tree, &[1], 0), [(7, 1), (8, 1)].into());
    assert_eq!(matches(&mut tree, &[2], 0), [].into());
    check(&tree);
}

#[test]
fn a_prompt_that_ends_inside_a_run_makes_its_worker_hold_that_part_only() {
    let mut tree = Tree::new(AMPLE, 0);
    insert(&mut tree, &[1, 2, 3, 4], 0, 0);
    insert(&mut tree, &[1, 2], 1, 0);
    assert_eq!(matches(&mut tree, &[1, 2, 3, 4], 0), [(0, 4), (1, 2)].into());
}

#[test]
fn the_longest_unused_go_first_and_one_huge_prompt_does_not_sweep_the_tree() {
    let bound = 1 << 20;
    let mut tree = Tree::new(bound, 0);
    let prompt = |i: u32| -> Vec<u64> {
        let mut key = PrefixKey::new();
        let mut builder = key.builder(u64::from(i));
        builder.push(&[0; 64 * 32]);
        builder.finish();
        key.blocks().to_vec()
    };
    let record = |tree: &mut Tree, key: &[u64]| {
        tree.descend(key, 0);
        tree.record(key, Slot(0), None);
    };
    for i in 0..10_000 {
        record(&mut tree, &prompt(i));
        if i % 7 == 0 {
            record(&mut tree, &prompt(0));
        }
    }
    check(&tree);
    let known = |tree: &mut Tree, i: u32| {
        tree.descend(&prompt(i), 0);
        tree.blocks_held_by(Slot(0)) == 32
    };
    let kept: Vec<u32> = (1..10_000).filter(|&i| known(&mut tree, i)).collect();
    assert!(known(&mut tree, 0), "used all the time, so it stays");
    assert!(
        kept.len() > 2000 && kept.iter().copied().eq(10_000 - kept.len() as u32..10_000),
        "{}",
        kept.len()
    );

    let huge: Vec<u64> = (1..1_000_000_u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    record(&mut tree, &huge);
    check(&tree);
    tree.descend(&huge, 0);
    let held = tree.blocks_held_by(Slot(0));
    assert!((10_000..=bound / 16).contains(&held), "{held}");
    assert!(known(&mut tree, 9_999));
}

#[test]
fn a_prompt_of_half_the_room_replaces_another_one() {
    let bound = 1 << 20;
    let mut tree = Tree::new(bound, 0);
    for namespace in 1..5_u64 {
        let key: Vec<u64> =
            (0..60_000_u64).map(|i| ((i << 8) | namespace).wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        tree.descend(&key, 0);
        tree.record(&key, Slot(0), None);
        tree.descend(&key, 0);
        assert!(tree.blocks_held_by(Slot(0)) > 55_000, "{namespace}");
        check(&tree);
    }
}

#[test]
fn what_is_forgotten_is_cleaned_up_by_later_accesses() {
    let mut tree = Tree::new(AMPLE, 0);
    for block in 0..200_u8 {
        insert(&mut tree, &[block, block, 1], u32::from(block % 2), 0);
    }
    assert_eq!(tree.arena.used(), 200);
    tree.forget(Slot(0));
    assert_eq!(matches(&mut tree, &[4, 4, 1], 0), [].into());
    assert_eq!(matches(&mut tree, &[5, 5, 1], 0), [(1, 3)].into());
    for _ in 0..20 {
        matches(&mut tree, &[9], 0);
    }
    assert_eq!(tree.arena.used(), 100);
    check(&tree);
}

#[test]
fn dead_prefixes_make_room_before_live_ones() {
    let mut tree = Tree::new(12_000, 0);
    let mut block = 0_u8;
    while tree.cleaner.is_none() {
        insert(&mut tree, &[block, 1, 2], 0, 0);
        block += 1;
        if block == 20 {
            insert(&mut tree, &[251, 1, 2], 1, 0);
            tree.forget(Slot(0));
        }
    }
    for block in 100..110 {
        insert(&mut tree, &[block, 1, 2], 2, 0);
    }
    assert_eq!(matches(&mut tree, &[251, 1, 2], 0), [(1, 3)].into());
}

#[test]
fn a_slot_number_out_of_range_holds_nothing_and_a_wild_one_costs_no_memory() {
    let mut tree = Tree::new(1 << 20, 0);
    insert(&mut tree, &[1, 2], SLOTS, 0);
    assert_eq!(matches(&mut tree, &[1, 2], 0), [].into());
    insert(&mut tree, &[1, 2], SLOTS - 1, 0);
    assert_eq!(matches(&mut tree, &[1, 2], 0), [(SLOTS - 1, 2)].into());
    tree.forget(Slot(SLOTS - 1));
    assert_eq!(matches(&mut tree, &[1, 2], 0), [].into());
    check(&tree);
}

#[test]
fn when_the_ticks_run_out_the_tree_starts_over() {
    let mut tree = Tree::new(AMPLE, 0);
    insert(&mut tree, &[1], 3, 0);
    tree.tick = LAST_TICK;
    insert(&mut tree, &[2], 3, 0);
    assert_eq!(matches(&mut tree, &[1], 0), [].into());
    assert_eq!(matches(&mut tree, &[2], 0), [(3, 1)].into());
}

#[test]
fn short_and_long_prompts_cost_less_than_forty_bytes_a_block() {
    for (blocks, limit) in [(33_usize, 14), (8, 30), (256, 10)] {
        let mut tree = Tree::new(AMPLE, 0);
        for prompt in 1..5000_u64 {
            let key: Vec<u64> =
                (0..blocks as u64).map(|i| (prompt << 20 | i).wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
            tree.descend(&key, 0);
            tree.record(&key, Slot(0), None);
        }
        let each = tree.resident_bytes() / (4999 * blocks);
        assert!(each <= limit, "{blocks} blocks: {each} bytes each");
    }
}

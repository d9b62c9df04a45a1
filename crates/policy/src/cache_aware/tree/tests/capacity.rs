//! What the tree says of a worker of known capacity, against a cache as an engine keeps it.

use proptest::prelude::*;

use super::*;

/// A worker's cache as the engine keeps it: blocks, least recently used first.
struct Cache {
    capacity: usize,
    blocks: Vec<u64>,
}

impl Cache {
    fn touch(&mut self, key: &[u64]) -> usize {
        let found = key.iter().take_while(|hash| self.blocks.contains(hash)).count();
        for hash in key.iter().rev() {
            self.blocks.retain(|known| known != hash);
            self.blocks.push(*hash);
        }
        let surplus = self.blocks.len().saturating_sub(self.capacity);
        self.blocks.drain(..surplus);
        found
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    #[test]
    fn with_a_capacity_the_tree_predicts_what_the_worker_still_holds(
        prompts in prop::collection::vec((0_u8..40, 0_u8..6, 1_usize..8), 300..800),
    ) {
        let mut tree = Tree::new(AMPLE, 0);
        let mut cache = Cache { capacity: 200, blocks: Vec::new() };
        let (mut predicted, mut found, mut wrong) = (0, 0, 0);
        for (head, tail, len) in prompts {
            let mut blocks = vec![head; 4];
            blocks.extend(vec![100 + tail; len]);
            let key = chain(&blocks);
            tree.descend(&key, 0);
            let held = tree.blocks_held_by(Slot(3));
            tree.record(&key, Slot(3), Some(200));
            let real = cache.touch(&key);
            (predicted, found, wrong) = (predicted + held, found + real, wrong + held.abs_diff(real));
            check(&tree);
        }
        prop_assert!(wrong * 12 < found, "predicted {}, found {}, wrong {}", predicted, found, wrong);
    }
}

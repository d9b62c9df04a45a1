//! A hash ring over all members of the pool: the same key goes to the same worker, on every replica.

use std::cmp::Ordering;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::choice::{Pick, Reason};
use crate::draws::Draw;
use crate::fleet::{Fleet, Slot};
use crate::key::{HashKey, ring_hash};

/// Points of each worker on the ring.
const POINTS_PER_WORKER: u64 = 160;

/// Members stay on the ring while they are not eligible: their keys go to the next one for the time being and
/// come back with them.
#[derive(Debug, Default)]
pub(crate) struct ConsistentHash {
    /// Sorted by hash.
    points: Vec<(u64, Slot)>,
    /// Slots on the ring, sorted.
    members: Vec<Slot>,
    generation: Option<u64>,
}

impl ConsistentHash {
    /// The first eligible worker at or after the key; drawn if there is no key.
    pub(crate) fn pick<F: Fleet>(
        &mut self,
        key: Option<HashKey>,
        fleet: &F,
        draw: &mut Draw,
    ) -> Option<Pick> {
        let Some(key) = key else {
            return Some(Pick::plain(draw.eligible(fleet, None)?, Reason::NoKey));
        };
        if self.generation != Some(fleet.generation()) {
            self.rebuild(fleet);
        }
        let start = self.points.partition_point(|&(hash, _)| hash < key.hash);
        let (after, before) = (self.points.get(start..)?, self.points.get(..start)?);
        let home = after.first().or_else(|| before.first())?.1;
        if let Some(index) = fleet.find(home).filter(|&i| fleet.eligible(i)) {
            return Some(Pick::plain(index, key.kind.into()));
        }
        // Without this a dead fleet would cost a walk over all points.
        (0..fleet.len()).find(|&i| fleet.eligible(i))?;
        let index = after
            .iter()
            .chain(before)
            .find_map(|&(_, slot)| fleet.find(slot).filter(|&i| fleet.eligible(i)))?;
        Some(Pick::plain(index, Reason::NextOnRing))
    }

    /// Makes the ring match the fleet. Only workers that came are hashed.
    fn rebuild<F: Fleet>(&mut self, fleet: &F) {
        self.generation = Some(fleet.generation());
        let old = std::mem::take(&mut self.members);
        self.members = (0..fleet.len()).map(|i| fleet.slot(i)).collect();
        if old.iter().any(|slot| self.members.binary_search(slot).is_err()) {
            let members = &self.members;
            self.points.retain(|(_, slot)| members.binary_search(slot).is_ok());
        }
        for i in (0..fleet.len()).filter(|&i| old.binary_search(&fleet.slot(i)).is_err()) {
            let (name, slot) = (ring_hash(fleet.name(i).as_bytes()), fleet.slot(i));
            let point = |vnode: u64| (xxh3_64_with_seed(&vnode.to_le_bytes(), name), slot);
            self.points.extend((0..POINTS_PER_WORKER).map(point));
        }
        // Equal hashes of two workers are ordered by name, because slots differ between replicas.
        let name = |slot: Slot| fleet.find(slot).map(|i| fleet.name(i));
        self.points.sort_by(|a, b| match a.0.cmp(&b.0) {
            Ordering::Equal => name(a.1).cmp(&name(b.1)),
            order => order,
        });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::key::HashKeyKind;
    use crate::testing::Sample;

    fn key(i: u32) -> HashKey {
        HashKey::new(HashKeyKind::SessionHeader, &i.to_le_bytes())
    }

    fn homes(ring: &mut ConsistentHash, fleet: &Sample, keys: u32) -> Vec<String> {
        (0..keys)
            .map(|i| {
                let pick = ring.pick(Some(key(i)), fleet, &mut Draw::new(0, 0)).unwrap();
                fleet.name(pick.index).to_owned()
            })
            .collect()
    }

    #[test]
    fn keys_are_spread_over_all_workers() {
        let fleet = Sample::new(8);
        let homes = homes(&mut ConsistentHash::default(), &fleet, 8000);
        for worker in &fleet.workers {
            let count = homes.iter().filter(|home| **home == worker.name).count();
            assert!((700..1300).contains(&count), "{}: {count}", worker.name);
        }
    }

    #[test]
    fn keys_of_an_ineligible_worker_move_to_the_next_and_come_back() {
        let mut fleet = Sample::new(6);
        let mut ring = ConsistentHash::default();
        let before = homes(&mut ring, &fleet, 2000);
        fleet.workers[2].eligible = false;
        let gone = fleet.workers[2].name.clone();
        for (i, (was, is)) in before.iter().zip(homes(&mut ring, &fleet, 2000)).enumerate() {
            assert_ne!(is, gone);
            assert!(*was == gone || *was == is);
            let reason = ring.pick(Some(key(i as u32)), &fleet, &mut Draw::new(0, 0)).unwrap().reason;
            assert_eq!(reason == Reason::NextOnRing, *was == gone);
        }
        fleet.workers[2].eligible = true;
        assert_eq!(homes(&mut ring, &fleet, 2000), before);
    }

    #[test]
    fn a_key_that_falls_on_a_point_or_behind_the_last_one_finds_its_worker() {
        let fleet = Sample::new(5);
        let mut ring = ConsistentHash::default();
        homes(&mut ring, &fleet, 1);
        let points = ring.points.clone();
        let mut home = |hash| {
            let key = HashKey { hash, kind: HashKeyKind::Body };
            fleet.slot(ring.pick(Some(key), &fleet, &mut Draw::new(0, 0)).unwrap().index)
        };
        assert!(points.iter().all(|&(hash, slot)| home(hash) == slot));
        assert_eq!(home(u64::MAX), points[0].1);
        assert_eq!(home(0), points[0].1);
    }

    #[test]
    fn without_a_key_a_worker_is_drawn() {
        let fleet = Sample::new(4);
        let mut ring = ConsistentHash::default();
        let mut seen = [0_u32; 4];
        for k in 0..400 {
            let pick = ring.pick(None, &fleet, &mut Draw::new(0, k)).unwrap();
            assert_eq!(pick.reason, Reason::NoKey);
            seen[pick.index] += 1;
        }
        assert!(seen.iter().all(|&count| count > 60), "{seen:?}");
    }

    #[test]
    fn no_member_and_no_eligible_member_are_no_choice() {
        let mut ring = ConsistentHash::default();
        assert_eq!(ring.pick(Some(key(1)), &Sample::new(0), &mut Draw::new(0, 0)), None);
        let mut fleet = Sample::new(2);
        for worker in &mut fleet.workers {
            worker.eligible = false;
        }
        assert_eq!(ring.pick(Some(key(1)), &fleet, &mut Draw::new(0, 0)), None);
        assert_eq!(ring.pick(None, &fleet, &mut Draw::new(0, 0)), None);
    }

    proptest! {
        #[test]
        fn a_worker_that_leaves_moves_only_its_own_keys_and_they_return_with_it(
            size in 2_u32..12,
            leaver in any::<prop::sample::Index>(),
        ) {
            let leaver = leaver.index(size as usize) as u32;
            let all = Sample::new(size);
            let rest = Sample::with_slots(&(0..size).filter(|&slot| slot != leaver).collect::<Vec<_>>());
            let mut ring = ConsistentHash::default();
            let before = homes(&mut ring, &all, 300);
            let gone = &all.workers[leaver as usize].name;
            for (was, is) in before.iter().zip(homes(&mut ring, &rest, 300)) {
                prop_assert!(was == gone || *was == is);
                prop_assert_ne!(&is, gone);
            }
            prop_assert_eq!(homes(&mut ring, &all, 300), before);
        }

        #[test]
        fn replicas_with_another_registration_order_and_history_agree(
            names in prop::collection::hash_set("[a-z]{1,6}", 2..10),
            shuffle in any::<u64>(),
            joined_later in 0_usize..4,
        ) {
            let names: Vec<String> = names.into_iter().collect();
            let fleet_of = |order: &[String], generation| {
                let mut fleet = Sample::new(order.len() as u32);
                for (worker, name) in fleet.workers.iter_mut().zip(order) {
                    worker.name.clone_from(name);
                }
                fleet.generation = generation;
                fleet
            };
            let mut other = names.clone();
            other.sort_by_key(|name| xxh3_64_with_seed(name.as_bytes(), shuffle));
            let mut grown = ConsistentHash::default();
            let early = other.len() - joined_later.min(other.len() - 1);
            homes(&mut grown, &fleet_of(&other[..early], 1), 1);
            let at_once = homes(&mut ConsistentHash::default(), &fleet_of(&names, 1), 200);
            prop_assert_eq!(homes(&mut grown, &fleet_of(&other, 2), 200), at_once);
        }
    }
}

//! The lightest of some candidates: fewest in flight, then fewest served, then drawn.

use crate::draws::Draw;
use crate::fleet::Fleet;

/// Keeps the lightest candidate offered so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lightest {
    best: Option<(u32, u64, usize)>,
    equals: usize,
    offered: usize,
}

impl Lightest {
    /// The lightest eligible candidate of the fleet.
    pub(crate) fn of<F: Fleet>(fleet: &F, draw: &mut Draw) -> Self {
        let mut lightest = Self::default();
        for i in (0..fleet.len()).filter(|&i| fleet.eligible(i)) {
            lightest.offer(fleet, i, fleet.in_flight(i), draw);
        }
        lightest
    }

    /// Considers candidate `i`, whose load was read by the caller.
    pub(crate) fn offer<F: Fleet>(&mut self, fleet: &F, i: usize, in_flight: u32, draw: &mut Draw) {
        self.offered += 1;
        let Some((least, fewest, _)) = self.best else {
            self.best = Some((in_flight, fleet.served(i), i));
            self.equals = 1;
            return;
        };
        if in_flight > least {
            return;
        }
        let served = fleet.served(i);
        if (in_flight, served) < (least, fewest) {
            self.best = Some((in_flight, served, i));
            self.equals = 1;
        } else if (in_flight, served) == (least, fewest) {
            self.equals += 1;
            if draw.below(self.equals) == 0 {
                self.best = Some((in_flight, served, i));
            }
        }
    }

    /// Index and load of the lightest candidate.
    pub(crate) fn get(&self) -> Option<(usize, u32)> {
        self.best.map(|(in_flight, _, i)| (i, in_flight))
    }

    /// How many candidates were considered.
    pub(crate) const fn offered(&self) -> usize {
        self.offered
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Sample;

    #[test]
    fn load_goes_before_served_and_served_before_the_draw() {
        let mut fleet = Sample::new(4);
        for (worker, (in_flight, served)) in fleet.workers.iter_mut().zip([(2, 0), (1, 9), (1, 5), (1, 5)]) {
            worker.in_flight.set(in_flight);
            worker.served.set(served);
        }
        let mut seen = [0; 4];
        for k in 0..200 {
            let (i, load) = Lightest::of(&fleet, &mut Draw::new(1, k)).get().unwrap();
            assert_eq!(load, 1);
            seen[i] += 1;
        }
        assert_eq!((seen[0], seen[1]), (0, 0));
        assert!(seen[2] > 70 && seen[3] > 70, "{seen:?}");
    }

    #[test]
    fn the_ineligible_are_not_considered() {
        let mut fleet = Sample::new(3);
        fleet.workers[0].eligible = false;
        let lightest = Lightest::of(&fleet, &mut Draw::new(1, 1));
        assert_eq!(lightest.offered(), 2);
        assert_ne!(lightest.get().unwrap().0, 0);
    }
}

//! The less loaded of two random candidates.

use crate::choice::{Pick, Reason};
use crate::draws::Draw;
use crate::fleet::Fleet;
use crate::groups::Loads;

/// Draws two distinct eligible candidates; less load wins, the first of two equals.
pub(crate) fn pick<F: Fleet>(fleet: &F, loads: &mut Loads, draw: &mut Draw) -> Option<Pick> {
    let first = draw.eligible(fleet, None)?;
    let Some(second) = draw.eligible(fleet, Some(first)) else {
        return Some(Pick::plain(first, Reason::OnlyCandidate));
    };
    loads.look(fleet);
    let load = |i| loads.of(fleet, i);
    let index = if load(second) < load(first) { second } else { first };
    Some(Pick::plain(index, Reason::FewerInFlight))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::LoadKind;
    use crate::testing::Sample;

    fn loads(kind: LoadKind) -> Loads {
        Loads::new(kind, 0.0)
    }

    #[test]
    fn of_two_the_less_loaded_always_wins_because_the_two_are_distinct() {
        let fleet = Sample::new(2);
        fleet.workers[0].in_flight.set(1);
        for k in 0..500 {
            assert_eq!(
                pick(&fleet, &mut loads(LoadKind::Requests), &mut Draw::new(3, k)),
                Some(Pick::plain(1, Reason::FewerInFlight))
            );
        }
    }

    #[test]
    fn the_most_loaded_of_many_is_never_chosen() {
        let fleet = Sample::new(10);
        fleet.workers[4].in_flight.set(1);
        let mut counts = [0_u32; 10];
        for k in 0..2000 {
            counts[pick(&fleet, &mut loads(LoadKind::Requests), &mut Draw::new(3, k)).unwrap().index] += 1;
        }
        assert_eq!(counts[4], 0);
        assert!(counts.iter().enumerate().all(|(i, &count)| i == 4 || count > 150), "{counts:?}");
    }

    #[test]
    fn one_is_enough_and_none_is_an_answer() {
        let mut fleet = Sample::new(3);
        fleet.workers[0].eligible = false;
        fleet.workers[2].eligible = false;
        assert_eq!(
            pick(&fleet, &mut loads(LoadKind::Requests), &mut Draw::new(0, 0)),
            Some(Pick::plain(1, Reason::OnlyCandidate))
        );
        fleet.workers[1].eligible = false;
        assert_eq!(pick(&fleet, &mut loads(LoadKind::Requests), &mut Draw::new(0, 0)), None);
    }
}

//! The candidate with the least load of all.

use crate::choice::{Pick, Reason};
use crate::draws::Draw;
use crate::fleet::Fleet;
use crate::groups::Loads;

/// One scan; of equals one is drawn.
pub(crate) fn pick<F: Fleet>(fleet: &F, loads: &mut Loads, draw: &mut Draw) -> Option<Pick> {
    loads.look(fleet);
    let mut least = u64::MAX;
    let mut equals = 0;
    let mut chosen = None;
    // Loads may change under us, so each is asked for once.
    for i in (0..fleet.len()).filter(|&i| fleet.eligible(i)) {
        let load = loads.of(fleet, i);
        if load < least || chosen.is_none() {
            (least, equals, chosen) = (load, 1, Some(i));
        } else if load == least {
            equals += 1;
            if draw.below(equals) == 0 {
                chosen = Some(i);
            }
        }
    }
    Some(Pick::plain(chosen?, Reason::LeastLoad))
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
    fn the_least_loaded_eligible_one_is_chosen_and_equals_take_turns() {
        let mut fleet = Sample::new(4);
        fleet.workers[0].in_flight.set(3);
        fleet.workers[3].eligible = false;
        let mut counts = [0_u32; 4];
        for k in 0..1000 {
            counts[pick(&fleet, &mut loads(LoadKind::Requests), &mut Draw::new(3, k)).unwrap().index] += 1;
        }
        assert_eq!((counts[0], counts[3]), (0, 0));
        assert!(counts[1] > 350 && counts[2] > 350, "{counts:?}");
    }

    #[test]
    fn the_load_may_be_tokens() {
        let fleet = Sample::new(2);
        fleet.workers[0].in_flight.set(5);
        fleet.workers[1].pending_tokens.set(10_000);
        let index = |kind| pick(&fleet, &mut loads(kind), &mut Draw::new(3, 0)).unwrap().index;
        assert_eq!((index(LoadKind::Requests), index(LoadKind::Tokens)), (1, 0));
    }

    #[test]
    fn without_anybody_there_is_no_choice() {
        assert_eq!(pick(&Sample::new(0), &mut loads(LoadKind::Requests), &mut Draw::new(0, 0)), None);
    }
}

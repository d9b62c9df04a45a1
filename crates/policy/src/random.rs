//! Uniformly random over the eligible candidates.

use crate::choice::{Pick, Reason};
use crate::draws::Draw;
use crate::fleet::Fleet;

/// One draw.
pub(crate) fn pick<F: Fleet>(fleet: &F, draw: &mut Draw) -> Option<Pick> {
    Some(Pick::plain(draw.eligible(fleet, None)?, Reason::Draw))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Sample;

    #[test]
    fn every_eligible_candidate_gets_its_share() {
        let mut fleet = Sample::new(5);
        fleet.workers[2].eligible = false;
        let mut counts = [0_u32; 5];
        for k in 0..4000 {
            counts[pick(&fleet, &mut Draw::new(5, k)).unwrap().index] += 1;
        }
        assert_eq!(counts[2], 0);
        for i in [0, 1, 3, 4] {
            assert!((880..1120).contains(&counts[i]), "{counts:?}");
        }
    }
}

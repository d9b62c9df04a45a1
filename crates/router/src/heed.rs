//! What the refusal of a leg says of its worker: other ranks, with which the pair begins anew, or another model, so that
//! somebody else is asked. It sends nothing and chooses nobody.

use std::sync::Arc;

use forebay_pd::LegFailure;

use crate::course::Course;
use crate::decode::DecodeEnd;
use crate::failure::Failure;
use crate::forwarded::Forwarded;
use crate::pair::Pair;
use crate::pairs::PairOutcome;
use crate::prefill::PrefillEnd;
use crate::refusals::{has_moved, is_unserved};

impl Pair<'_> {
    /// A prefill leg's end, unless its worker refuses the rank that it was told: then the pair begins anew.
    pub(crate) async fn heed_prefill(
        &self,
        course: &mut Course<'_>,
        mut end: PrefillEnd,
    ) -> Result<PrefillEnd, Failure> {
        if let PrefillEnd::Answered(failure @ LegFailure::Rejected, answer) = &mut end
            && self.heed(course, (answer, false)).await?
        {
            *failure = LegFailure::Unserved;
            course.tried_prefill.add_all_of(answer.leg.worker().host());
        }
        Ok(end)
    }

    /// The same of a decode leg. What was handed over lapses with its lease, since nobody has read it.
    pub(crate) async fn heed_decode(
        &self,
        course: &mut Course<'_>,
        mut end: DecodeEnd,
    ) -> Result<DecodeEnd, Failure> {
        if let DecodeEnd::Answered(failure @ LegFailure::Rejected, answer) = &mut end
            && self.heed(course, (answer, self.asked.rank.is_some())).await?
        {
            *failure = LegFailure::Unserved;
            course.tried_decode.add_all_of(answer.leg.worker().host());
        }
        Ok(end)
    }

    /// Whether the refusal says that the model is not served there. `insists` says that the rank is the client's own wish.
    async fn heed(
        &self,
        course: &mut Course<'_>,
        (answer, insists): (&mut Forwarded, bool),
    ) -> Result<bool, Failure> {
        let worker = Arc::clone(answer.leg.worker());
        if has_moved(self.forward.writer, &worker, &mut answer.answer, insists).await? {
            course.count.outcome = PairOutcome::BegunAnew;
            return Err(Failure::RanksMoved);
        }
        is_unserved(&worker, &mut answer.answer, self.asked).await
    }
}

//! What a worker's refusal tells of the worker: that it has other ranks, or serves other models, than was known. What follows
//! for the request is not decided here.

use forebay_workers::{Models, Worker, Writer};
use http::StatusCode;
use memchr::memmem;

use crate::classify::Asked;
use crate::failure::Failure;
use crate::ranks;
use crate::upstream::Answer;

/// Longest refusal that is read, in bytes: what is longer is another complaint.
pub(crate) const REFUSAL_LIMIT: u64 = 4096;

/// Whether an answer may be a refusal that tells something of the worker.
pub(crate) fn may_be_refusal(answer: &Answer) -> bool {
    matches!(answer.status, StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND)
}

/// Whether an answer may be the refusal of the rank that the worker was told.
pub(crate) fn may_be_moved(answer: &Answer, worker: &Worker) -> bool {
    answer.status == StatusCode::BAD_REQUEST && worker.dp_rank().is_some()
}

/// Whether an answer may say that the worker does not serve the model that the request names.
pub(crate) fn may_be_unserved(answer: &Answer, asked: &Asked) -> bool {
    answer.status == StatusCode::NOT_FOUND && asked.model.is_some()
}

/// Whether a text is vLLM's complaint that there is no such model.
fn says_unserved(text: &[u8]) -> bool {
    let model = memmem::find(text, b"The model `");
    model.is_some_and(|at| memmem::find(&text[at..], b"` does not exist").is_some())
}

/// Whether a worker refuses the rank that it was told because it has others, which are believed from now on.
/// A client that `insists` on a rank gets the refusal.
pub(crate) async fn has_moved(
    writer: &Writer,
    worker: &Worker,
    answer: &mut Answer,
    insists: bool,
) -> Result<bool, Failure> {
    if !may_be_moved(answer, worker) {
        return Ok(false);
    }
    let refusal = answer.body.read_ahead(REFUSAL_LIMIT).await;
    let Some(ranks) = refusal.map_err(|_| Failure::WorkerDied)?.and_then(|text| ranks::told(&text)) else {
        return Ok(false);
    };
    if worker.dp_rank().is_none_or(|rank| ranks.contains(rank)) {
        return Ok(false);
    }
    if writer.ranks(worker.host(), Some(ranks)) {
        tracing::warn!(worker = worker.name(), %ranks, "the worker has other data-parallel ranks than were known");
    }
    Ok(!insists)
}

/// Whether a worker says that it does not serve the model. If it was believed to, its models are read anew, at once.
pub(crate) async fn is_unserved(
    worker: &Worker,
    answer: &mut Answer,
    asked: &Asked,
) -> Result<bool, Failure> {
    if !may_be_unserved(answer, asked) {
        return Ok(false);
    }
    let refusal = answer.body.read_ahead(REFUSAL_LIMIT).await.map_err(|_| Failure::WorkerDied)?;
    if !refusal.is_some_and(|text| says_unserved(&text)) {
        return Ok(false);
    }
    let models = worker.models();
    if let (Models::Named(_), Some(model)) = (&*models, &asked.model)
        && models.serves(model)
    {
        tracing::info!(worker = worker.name(), model, "the worker does not serve the model any more");
        worker.host().may_serve_others();
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_complaint_about_a_model_is_taken_for_it() {
        assert!(says_unserved(br#"{"error":{"message":"The model `tiny` does not exist.","code":404}}"#));
        for other in [&br#"{"detail":"Not Found"}"#[..], b"", b"The lora adapter `x` does not exist"] {
            assert!(!says_unserved(other));
        }
    }
}

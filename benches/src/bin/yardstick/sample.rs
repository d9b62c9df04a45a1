//! One run of a load against one target: what it gave. Compares nothing.

use std::time::{Duration, Instant};

use crate::answer::Answer;
use crate::case::Shape;
use crate::client::{self, Crowd, Plan};
use crate::failure::Failure;
use crate::process::{Process, Usage};

/// Load before the measurement begins.
const WARM_UP: Duration = Duration::from_millis(500);

/// What one run gave.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    /// Answers per second; of streams, their records per second over those of one.
    pub(crate) rate: f64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    /// User and system time of the router for one request; zero without a router.
    pub(crate) cpu: Duration,
    /// Share of one core that it used.
    pub(crate) busy: f64,
    /// Times that a thread of the router went to sleep, for one request.
    pub(crate) sleeps: f64,
    /// Resident memory at the end.
    pub(crate) resident: u64,
    pub(crate) errors: u64,
    /// The first error.
    pub(crate) complaint: Option<String>,
}

/// Runs the clients for a warm-up and then `length`, with an eye on the process.
pub(crate) async fn take(plan: &Plan, shape: &Shape, length: Duration, process: Option<&Process>) -> Sample {
    // Answers that take time would otherwise all end at the same moment.
    let duration = shape.pace.unwrap_or_default() * shape.stream.unwrap_or_default();
    let crowd = Crowd::start(plan, duration);
    tokio::time::sleep(WARM_UP + duration).await;
    let usage = |process: Option<&Process>| process.map(Process::usage).unwrap_or_default();
    let (before, used, begin) = (crowd.tally.counts(), usage(process), Instant::now());
    crowd.tally.start_timing();
    tokio::time::sleep(length).await;
    let (after, used_then, elapsed) = (crowd.tally.counts(), usage(process), begin.elapsed());
    let latencies = crowd.tally.take_latencies();
    let resident = process.map_or(0, Process::resident);
    let tally = crowd.finish().await;
    let requests = match plan.expected {
        Some(expected) if shape.stream.is_some() => {
            (after.records - before.records) as f64 / expected.records.max(1) as f64
        }
        _ => (after.served - before.served) as f64,
    };
    let cpu = Usage::cpu_since(used_then, used);
    let sleeps = used_then.sleeps.saturating_sub(used.sleeps) as f64;
    Sample {
        rate: requests / elapsed.as_secs_f64(),
        p50: percentile(&latencies, 50),
        p99: percentile(&latencies, 99),
        cpu: cpu.div_f64(requests.max(1.0)),
        busy: cpu.as_secs_f64() / elapsed.as_secs_f64(),
        sleeps: sleeps / requests.max(1.0),
        resident,
        errors: tally.counts().errors,
        complaint: tally.complaint(),
    }
}

/// What an answer looks like on this target; of a stream, all records must be there.
pub(crate) async fn calibrate(plan: &Plan, shape: &Shape) -> Result<Answer, Failure> {
    let answer = client::ask(plan.target, &plan.requests[0])
        .await
        .map_err(|error| Failure::Refused(format!("no answer to measure with: {error}")))?;
    let tokens = u64::from(shape.stream.unwrap_or_default());
    if answer.status != 200 || answer.length == 0 || answer.records < tokens || answer.done != (tokens > 0) {
        return Err(Failure::Refused(format!("not an answer to measure with: {answer:?}")));
    }
    Ok(Answer { close: false, ..answer })
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().unwrap_or_default()
}

//! How long it takes from the first answer of a worker to the `ready` line. Only forebay writes one.

use std::time::{Duration, Instant};

use forebay_sim::WorkerOptions;

use crate::failure::Failure;
use crate::pairs::{ROUTER_CORE, Site};
use crate::router::{Places, Router};

/// Between two looks at what the program has written. The error of the measurement.
const LOOK: Duration = Duration::from_micros(200);

const PATIENCE: Duration = Duration::from_secs(20);

/// One start.
pub(crate) struct Start {
    /// From the process to the line.
    pub(crate) since_spawn: Duration,
    /// From the end of a worker's first answer to the line.
    pub(crate) since_answer: Duration,
}

pub(crate) async fn measure(places: &Places) -> Result<Start, Failure> {
    let site = Site::start(&WorkerOptions::instant(1), Vec::new())?;
    let begin = Instant::now();
    let running = Router::Forebay.spawn(&site.launch(places, 1, ROUTER_CORE))?;
    let mut answered = None;
    loop {
        tokio::time::sleep(LOOK).await;
        let now = Instant::now();
        if site.workers.iter().any(|worker| worker.served() > 0) {
            answered.get_or_insert(now);
        }
        if running.output(places, Router::Forebay).contains("\"ready\"") {
            let since_answer = now - answered.unwrap_or(now);
            return Ok(Start { since_spawn: now - begin, since_answer });
        }
        if begin.elapsed() > PATIENCE {
            return Err(Failure::Refused("forebay did not say that it is ready".to_owned()));
        }
    }
}

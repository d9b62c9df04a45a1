//! How long it takes from the first answer of a worker to the `ready` line. Only forebay writes one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_sim::WorkerOptions;

use crate::failure::Failure;
use crate::pairs::{ROUTER_CORE, Site};
use crate::router::{Places, Router, Running};

/// Between two looks at what the program has written. With the scheduling of this thread, the error of the measurement.
const LOOK: Duration = Duration::from_micros(100);

const PATIENCE: Duration = Duration::from_secs(20);

/// One start.
pub(crate) struct Start {
    /// From the process to the line.
    pub(crate) since_spawn: Duration,
    /// From the arrival of the first probe at a worker, which answers at once, to the line. Not from the answer: that is
    /// noticed only after it was sent, possibly after the line.
    pub(crate) since_probe: Duration,
}

pub(crate) async fn measure(places: &Places) -> Result<Start, Failure> {
    let site = Site::start(&WorkerOptions::instant(1), Vec::new())?;
    let late = || Failure::Refused("forebay did not say that it is ready".to_owned());
    let begin = Instant::now();
    let running = Router::Forebay.spawn(&site.launch(places, 1, ROUTER_CORE))?;
    let [a, b, c, d] = site.workers.as_slice() else {
        return Err(Failure::Refused("not four workers".to_owned()));
    };
    let probed = async {
        // Whichever is first; their connections run on this thread too, so the time is right.
        tokio::select! {
            _ = a.wait_until(|stats| stats.arrived > 0) => {}
            _ = b.wait_until(|stats| stats.arrived > 0) => {}
            _ = c.wait_until(|stats| stats.arrived > 0) => {}
            _ = d.wait_until(|stats| stats.arrived > 0) => {}
        }
        Instant::now()
    };
    let gone = Arc::new(AtomicBool::new(false));
    // A thread, since the runtime's timer counts in milliseconds.
    let watcher = watch(&running, places, Arc::clone(&gone));
    let both = async { (probed.await, watcher.await) };
    let seen = tokio::time::timeout(PATIENCE, both).await;
    gone.store(true, Ordering::Relaxed);
    let (probed, ready) = seen.map_err(|_| late())?;
    let ready = ready.map_err(|_| late())?;
    Ok(Start { since_spawn: ready - begin, since_probe: ready.saturating_duration_since(probed) })
}

/// When the line was there, or when nobody wanted to know any more.
fn watch(running: &Running, places: &Places, gone: Arc<AtomicBool>) -> tokio::task::JoinHandle<Instant> {
    let path = running.output_path(places, Router::Forebay);
    tokio::task::spawn_blocking(move || {
        loop {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            if text.contains("\"ready\"") || gone.load(Ordering::Relaxed) {
                return Instant::now();
            }
            std::thread::sleep(LOOK);
        }
    })
}

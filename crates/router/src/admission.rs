//! How many requests may be under way at once, and who waits for a place: first come, first served. It knows nothing of
//! workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use prometheus::IntGauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::failure::Failure;

/// Knobs of admission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmissionSettings {
    /// Requests under way at once, from their heads until their clients have got everything. `None` is no limit.
    pub concurrent: Option<usize>,
    /// Requests that may wait for a place.
    pub queue: usize,
    /// Longest wait for a place.
    pub queue_timeout: Duration,
    /// Longest wait of a request for a worker that is well, if there is none. `None` is no wait.
    pub no_worker_wait: Option<Duration>,
}

impl Default for AdmissionSettings {
    fn default() -> Self {
        Self { concurrent: None, queue: 100, queue_timeout: Duration::from_secs(60), no_worker_wait: None }
    }
}

/// A place among the requests under way, given back by drop.
pub(crate) struct Permit {
    _place: OwnedSemaphorePermit,
    /// Whether it had to be waited for.
    pub waited: bool,
}

/// Hands out places.
pub(crate) struct Admission {
    /// Gives places in the order in which they were asked for. `None` if there is no limit.
    places: Option<Arc<Semaphore>>,
    waiting: AtomicUsize,
    gauge: IntGauge,
    queue: usize,
    timeout: Duration,
}

impl Admission {
    /// `gauge` shows how many wait.
    pub(crate) fn new(settings: &AdmissionSettings, gauge: IntGauge) -> Self {
        let places = |count: usize| Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS)));
        Self {
            places: settings.concurrent.map(places),
            waiting: AtomicUsize::new(0),
            gauge,
            queue: settings.queue,
            timeout: settings.queue_timeout,
        }
    }

    /// A place, at once or after a wait in the queue; `None` if nobody counts.
    ///
    /// # Errors
    /// The queue is full, or the wait took too long.
    pub(crate) async fn enter(&self) -> Result<Option<Permit>, Failure> {
        let Some(places) = &self.places else { return Ok(None) };
        if let Ok(place) = Arc::clone(places).try_acquire_owned() {
            return Ok(Some(Permit { _place: place, waited: false }));
        }
        let _waiting = self.wait().ok_or(Failure::Overloaded)?;
        match tokio::time::timeout(self.timeout, Arc::clone(places).acquire_owned()).await {
            Ok(Ok(place)) => Ok(Some(Permit { _place: place, waited: true })),
            // It is never closed, so that there is only one way not to get one.
            Ok(Err(_)) | Err(_) => Err(Failure::QueueTimeout),
        }
    }

    /// Longest wait in the queue.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// A place in the queue, if there is one.
    pub(crate) fn wait(&self) -> Option<Waiting<'_>> {
        let take = |waiting: usize| (waiting < self.queue).then_some(waiting + 1);
        self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
        self.gauge.inc();
        Some(Waiting(self))
    }
}

/// One more that waits, for as long as this lives.
pub(crate) struct Waiting<'a>(&'a Admission);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
        self.0.gauge.dec();
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use super::*;

    fn admission(concurrent: usize, queue: usize) -> Arc<Admission> {
        let settings = AdmissionSettings {
            concurrent: Some(concurrent),
            queue,
            queue_timeout: Duration::from_secs(5),
            ..AdmissionSettings::default()
        };
        Arc::new(Admission::new(&settings, IntGauge::new("waiting", "waiting").unwrap()))
    }

    #[tokio::test(start_paused = true)]
    async fn places_go_to_those_who_wait_in_their_order() {
        let admission = admission(1, 10);
        let mut held = admission.enter().await.unwrap();
        let mut queue: Vec<_> = (0..4).map(|_| Box::pin(admission.enter())).collect();
        for waiting in &mut queue {
            assert!(std::future::poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx).is_pending())).await);
        }
        assert_eq!(admission.gauge.get(), 4);
        for mut waiting in queue {
            drop(held.take());
            // Whoever comes now does not get in before those who wait.
            let mut late = Box::pin(admission.enter());
            assert!(std::future::poll_fn(|cx| Poll::Ready(late.as_mut().poll(cx).is_pending())).await);
            held = waiting.as_mut().await.unwrap();
        }
        assert_eq!(admission.gauge.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_and_a_long_wait_are_told_apart() {
        let admission = admission(1, 1);
        let _held = admission.enter().await.unwrap();
        let first = admission.enter();
        let (first, second) = tokio::join!(first, admission.enter());
        assert_eq!(first.err(), Some(Failure::QueueTimeout));
        assert_eq!(second.err(), Some(Failure::Overloaded));
        assert_eq!(admission.waiting.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_leaves_the_queue_leaves_its_place() {
        let admission = admission(1, 1);
        let _held = admission.enter().await.unwrap();
        let gone = tokio::time::timeout(Duration::from_secs(1), admission.enter()).await;
        assert!(gone.is_err());
        assert_eq!(admission.waiting.load(Ordering::Relaxed), 0);
    }
}

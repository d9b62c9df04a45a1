//! How long an answer may stand still, and how long it may take in all. Costs nothing for each chunk but a flag.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until, timeout_at};

use crate::failure::{Failure, Stage};

/// The time limits of one answer.
pub(crate) struct Patience {
    /// Longest time without a byte.
    idle: Option<Duration>,
    /// When all has to be over.
    deadline: Option<Instant>,
    /// Made when there is first something to wait for.
    timer: Option<Pin<Box<Sleep>>>,
    /// Bytes came since the timer was set.
    moved: bool,
}

impl Patience {
    /// With these limits.
    pub(crate) fn new(idle: Option<Duration>, deadline: Option<std::time::Instant>) -> Self {
        Self { idle, deadline: deadline.map(Instant::from_std), timer: None, moved: false }
    }

    /// Bytes came.
    pub(crate) fn moved(&mut self) {
        self.moved = true;
    }

    /// Ready when a limit has passed. The timer is not set anew for each chunk: an answer that stands still is found out
    /// after once to twice the limit.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Stage> {
        if self.idle.is_none() && self.deadline.is_none() {
            return Poll::Pending;
        }
        loop {
            if self.timer.is_none() {
                let Some(until) = self.until() else { return Poll::Pending };
                self.timer = Some(Box::pin(sleep_until(until)));
                self.moved = false;
            }
            let Some(timer) = &mut self.timer else { return Poll::Pending };
            ready!(timer.as_mut().poll(cx));
            if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Poll::Ready(Stage::Request);
            }
            if !self.moved {
                return Poll::Ready(Stage::Stream);
            }
            self.timer = None;
        }
    }

    /// The same while it is not for want of bytes that nothing goes on: only the deadline counts.
    pub(crate) fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<Stage> {
        if self.deadline.is_none() {
            return Poll::Pending;
        }
        self.moved();
        self.poll(cx)
    }

    fn until(&self) -> Option<Instant> {
        let idle = self.idle.and_then(|idle| Instant::now().checked_add(idle));
        match (idle, self.deadline) {
            (Some(idle), Some(deadline)) => Some(idle.min(deadline)),
            (limit, None) | (None, limit) => limit,
        }
    }
}

/// Ends what takes too long, and what is still under way when all is to be cut. Most has no limit, and pays for one look.
pub(crate) async fn within<T>(
    deadline: Option<std::time::Instant>,
    is_cut: impl Fn() -> bool,
    mut work: Pin<&mut impl Future<Output = Result<T, Failure>>>,
) -> Result<T, Failure> {
    let watched = poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Pending if is_cut() => Poll::Ready(Err(Failure::Drained)),
        polled => polled,
    });
    match deadline {
        Some(deadline) => {
            timeout_at(deadline.into(), watched).await.unwrap_or(Err(Failure::WorkerTimeout(Stage::Request)))
        }
        None => watched.await,
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn standing_still_is_noticed_but_not_being_slow() {
        let mut patience = Patience::new(Some(Duration::from_secs(10)), None);
        for _ in 0..5 {
            let waited = poll_fn(|cx| patience.poll(cx));
            assert!(tokio::time::timeout(Duration::from_secs(9), waited).await.is_err());
            patience.moved();
        }
        assert_eq!(poll_fn(|cx| patience.poll(cx)).await, Stage::Stream);
    }

    #[tokio::test(start_paused = true)]
    async fn the_deadline_comes_even_if_bytes_do() {
        let deadline = Instant::now() + Duration::from_secs(25);
        let mut patience = Patience::new(Some(Duration::from_secs(10)), Some(deadline.into_std()));
        let mut stage = None;
        for _ in 0..5 {
            let waited = poll_fn(|cx| patience.poll(cx));
            stage = tokio::time::timeout(Duration::from_secs(6), waited).await.ok();
            patience.moved();
        }
        assert_eq!((stage, Instant::now()), (Some(Stage::Request), deadline));
    }

    #[tokio::test]
    async fn without_limits_there_is_no_timer() {
        let mut patience = Patience::new(None, None);
        assert!(poll_fn(|cx| Poll::Ready(patience.poll(cx).is_pending())).await);
        assert!(patience.timer.is_none());
    }
}

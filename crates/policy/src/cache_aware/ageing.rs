//! Turns the caller's clock into a tick: what was last used up to it has been unused for a whole period.

/// Knows the tick of the last period's end and no more, so nodes need no time.
#[derive(Debug)]
pub(super) struct Ageing {
    period_ms: u64,
    /// Time and tick at the last period's end.
    mark: Option<(u64, u64)>,
}

impl Ageing {
    /// Never, if the period is 0.
    pub(super) const fn new(period_secs: u64) -> Self {
        Self { period_ms: period_secs.saturating_mul(1000), mark: None }
    }

    /// Ticks start again from 0.
    pub(super) fn restart(&mut self) {
        if let Some((_, tick)) = &mut self.mark {
            *tick = 0;
        }
    }

    /// At the first access after a period: the tick up to which everything has been unused for it.
    pub(super) fn access(&mut self, now_ms: u64, tick: u64) -> Option<u64> {
        if self.period_ms == 0 {
            return None;
        }
        match self.mark {
            None => {
                self.mark = Some((now_ms, tick));
                None
            }
            Some((then_ms, horizon)) => (now_ms.saturating_sub(then_ms) >= self.period_ms).then(|| {
                self.mark = Some((now_ms, tick));
                horizon
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_within_the_period_stays() {
        let mut ageing = Ageing::new(10);
        assert_eq!(ageing.access(5_000, 0), None);
        assert_eq!(ageing.access(14_999, 3), None);
        assert_eq!(ageing.access(15_000, 4), Some(0));
        assert_eq!(ageing.access(24_999, 7), None);
        assert_eq!(ageing.access(90_000, 8), Some(4));
    }

    #[test]
    fn no_period_and_a_clock_that_runs_backwards_drop_nothing() {
        let mut never = Ageing::new(0);
        assert_eq!((never.access(0, 1), never.access(u64::MAX, 2)), (None, None));
        let mut ageing = Ageing::new(1);
        assert_eq!((ageing.access(5_000, 1), ageing.access(1_000, 2)), (None, None));
    }
}

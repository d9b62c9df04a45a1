//! Probe results in, state out: the thresholds of active health checks.

use std::time::Duration;

/// Knobs of the health probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthSettings {
    /// Path that is asked, `/health` in vLLM.
    pub endpoint: String,
    /// Time between two probes of one worker.
    pub interval: Duration,
    /// Time after which a probe counts as failed.
    pub timeout: Duration,
    /// Failed probes in a row after which a worker leaves rotation.
    pub failure_threshold: u32,
    /// Good probes in a row after which it returns.
    pub success_threshold: u32,
}

impl Default for HealthSettings {
    fn default() -> Self {
        Self {
            endpoint: "/health".to_owned(),
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(5),
            failure_threshold: 3,
            success_threshold: 2,
        }
    }
}

/// Where a worker stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Health {
    /// No probe has succeeded yet: the first good one suffices.
    #[default]
    New,
    /// In rotation, with this many failed probes in a row.
    Up(u32),
    /// Out of rotation, with this many good probes in a row.
    Down(u32),
}

impl Health {
    /// Takes one probe result; true if the worker may be in rotation now.
    pub fn probed(&mut self, good: bool, settings: &HealthSettings) -> bool {
        *self = match (&*self, good) {
            (Self::New, false) => Self::New,
            (Self::New, true) | (Self::Up(_), true) => Self::Up(0),
            (Self::Up(failed), false) if failed + 1 >= settings.failure_threshold => Self::Down(0),
            (Self::Up(failed), false) => Self::Up(failed + 1),
            (Self::Down(good), true) if good + 1 >= settings.success_threshold => Self::Up(0),
            (Self::Down(good), true) => Self::Down(good + 1),
            (Self::Down(_), false) => Self::Down(0),
        };
        matches!(self, Self::Up(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(results: &[bool]) -> Vec<bool> {
        let settings = HealthSettings::default();
        let mut health = Health::default();
        results.iter().map(|&good| health.probed(good, &settings)).collect()
    }

    #[test]
    fn the_first_good_probe_brings_a_new_worker_in() {
        assert_eq!(run(&[false, false, true]), [false, false, true]);
    }

    #[test]
    fn three_failures_in_a_row_take_it_out_and_two_good_probes_bring_it_back() {
        assert_eq!(
            run(&[true, false, false, true, false, false, false]),
            [true, true, true, true, true, true, false]
        );
        assert_eq!(
            run(&[true, false, false, false, true, false, true, true])[3..],
            [false, false, false, false, true]
        );
    }
}

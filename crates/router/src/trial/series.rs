//! The metrics that tell trials apart, made from the counts of trials when somebody scrapes: they cost requests nothing, and
//! the series of a trial that is no longer remembered are gone.

use std::sync::Arc;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounterVec, IntGaugeVec, Opts};

use crate::trial::figures::ModelFigures;
use crate::trial::trials::Trials;

/// Names of trials that have series.
const RUNS: usize = 100;

/// Renders trials as metric families.
pub struct TrialSeries {
    trials: Arc<Trials>,
    descriptions: Vec<Desc>,
}

/// The families, empty.
struct Families {
    info: IntGaugeVec,
    requests: IntCounterVec,
}

impl Families {
    fn new() -> Result<Self, prometheus::Error> {
        let info = Opts::new("forebay_trial_info", "1 for the current trial.");
        let requests = Opts::new(
            "forebay_run_requests_total",
            "Requests of the last 100 named trials. One that names a trial itself counts there, and in the named trial \
             that a reset began.",
        );
        Ok(Self {
            info: IntGaugeVec::new(info, &["epoch", "trial"])?,
            requests: IntCounterVec::new(requests, &["run_id", "model", "outcome"])?,
        })
    }
}

impl TrialSeries {
    /// Of these trials.
    pub fn new(trials: Arc<Trials>) -> Result<Self, prometheus::Error> {
        let Families { info, requests } = Families::new()?;
        let descriptions = info.desc().into_iter().chain(requests.desc()).cloned().collect();
        Ok(Self { trials, descriptions })
    }

    fn families(&self) -> Result<Vec<MetricFamily>, prometheus::Error> {
        let Families { info, requests } = Families::new()?;
        let (epoch, name) = self.trials.current();
        info.with_label_values(&[epoch.to_string().as_str(), name.as_deref().unwrap_or_default()]).set(1);
        for (run, models) in last(self.trials.runs()) {
            for ModelFigures { model, outcomes } in models {
                for (outcome, count) in outcomes {
                    requests.with_label_values(&[&*run, model.as_str(), outcome]).inc_by(count);
                }
            }
        }
        Ok([info.collect(), requests.collect()].concat())
    }
}

type Run = (Arc<str>, Vec<ModelFigures>);

/// Those that have the last [`RUNS`] names, latest last.
fn last(mut runs: Vec<Run>) -> Vec<Run> {
    let mut names: Vec<Arc<str>> = Vec::new();
    for (name, _) in runs.iter().rev() {
        if names.len() < RUNS && !names.contains(name) {
            names.push(Arc::clone(name));
        }
    }
    runs.retain(|(name, _)| names.contains(name));
    runs
}

impl Collector for TrialSeries {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // What was made once can be made again.
        self.families().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_hundred_names_have_series_and_one_that_came_again_is_among_them() {
        let named = |name: String| (Arc::from(name), Vec::new());
        let mut runs: Vec<Run> = (0..150).map(|number| named(number.to_string())).collect();
        runs.push(named("0".to_owned()));
        let kept = last(runs);
        let names: Vec<&str> = kept.iter().map(|(name, _)| &**name).collect();
        assert_eq!(
            (names.len(), names[0], names[1], names[100]),
            (101, "0", "51", "0"),
            "both counts of `0`"
        );
    }
}

//! What makes a trial unfit for comparison with others.

use forebay_policy::Reason;
use forebay_router::TrialView;
use forebay_router::outcome::Outcome;
use forebay_router::trial::Incidents;
use forebay_workers::BreakerState;
use serde::Serialize;

/// Why a trial should not be compared with others.
#[derive(Debug, Serialize, PartialEq, Eq)]
pub(super) struct Doubt {
    pub code: &'static str,
    pub detail: String,
}

/// What makes a trial unfit for comparison with others.
pub(super) fn doubts(view: &TrialView) -> Vec<Doubt> {
    let figures = &view.figures;
    let decided = |reason: Reason| figures.decisions.get(reason.as_str()).copied().unwrap_or(0);
    // Times that it happened, or how it is all the time.
    let incidents = |what: &dyn Fn(&Incidents) -> (u64, Option<&'static str>)| {
        let found = view.incidents().filter_map(|(member, incidents)| match what(&incidents) {
            (0, state) => Some(format!("{} {}", member.name, state?)),
            (count, _) => Some(format!("{} {count}×", member.name)),
        });
        found.collect::<Vec<_>>().join(", ")
    };
    let unwell = |incidents: &Incidents| (incidents.left, incidents.is_down.then_some("down"));
    let opened = |incidents: &Incidents| {
        let count = incidents.transitions[BreakerState::Open as usize];
        (count, incidents.began_open.then_some("open from before"))
    };
    let shared = view.shared_by();
    let number = |count: u64| if count > 0 { count.to_string() } else { String::new() };
    let since_first = |has: bool| if has { "since the first request".to_owned() } else { String::new() };
    let found = [
        ("fleet_changed", since_first(view.fleet_changed())),
        ("worker_unhealthy", incidents(&unwell)),
        ("breaker_opened", incidents(&opened)),
        ("pool_exhausted", number(figures.count(Outcome::PoolExhausted))),
        ("shared_router", shared.map_or(String::new(), |by| format!("{by} trials named by its requests"))),
        ("requests_from_before", number(view.opening.from_before)),
        ("prefix_cache_not_emptied", view.opening.not_emptied.join(", ")),
        ("prefix_cache_emptied", since_first(view.caches_emptied())),
        ("keys_by_authorization", number(decided(Reason::Authorization))),
        ("keys_by_client_ip", number(decided(Reason::ClientIp))),
        ("invariant_broken", number(view.invariants().1)),
    ];
    found
        .into_iter()
        .filter(|(_, detail)| !detail.is_empty())
        .map(|(code, detail)| Doubt { code, detail })
        .collect()
}

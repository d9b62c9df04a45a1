//! One bad day: what a client saw, what was counted since it began, what load was left; printed as a row of the table.

use std::collections::BTreeMap;

use forebay::App;
use forebay::settings::Settings;
use forebay_policy::PolicyKind;
use forebay_tests::{Client, Site, request, site, until};

pub(crate) const WHOLE: &str = r#"{"prompt":"x","max_tokens":8}"#;
pub(crate) const STREAM: &str = r#"{"prompt":"x","max_tokens":8,"stream":true}"#;

/// Requests by outcome, without pages of the router's own: by some of them this is asked.
pub(crate) fn outcomes(metrics: &str) -> BTreeMap<String, u64> {
    let mut outcomes = BTreeMap::new();
    let ours = |line: &&str| !line.contains(r#"outcome="own""#);
    for line in metrics.lines().filter(|line| line.starts_with("forebay_requests_total{")).filter(ours) {
        let outcome = line.split("outcome=\"").nth(1).unwrap().split('"').next().unwrap();
        *outcomes.entry(outcome.to_owned()).or_default() += site::sum(line, "forebay_requests_total", &[]);
    }
    outcomes
}

/// Outcomes as they are written in a row: `2 completed, 1 refused`.
pub(crate) fn listed(outcomes: &BTreeMap<String, u64>) -> String {
    let counted = outcomes.iter().filter(|(_, count)| **count > 0);
    counted.map(|(outcome, count)| format!("{count} {outcome}")).collect::<Vec<_>>().join(", ")
}

/// One row.
pub(crate) fn row(case: &str, outcomes: &str, saw: &str, load: &str) {
    println!("\n| {case} | {outcomes} | {saw} | {load} |");
}

/// A day of an application in process.
pub(crate) struct Day {
    pub(crate) case: &'static str,
    pub(crate) site: Site,
    before: BTreeMap<String, u64>,
}

impl Day {
    /// Before one worker that is asked again and again, whatever it does.
    pub(crate) async fn of_one(case: &'static str, change: impl FnOnce(&mut Settings)) -> Self {
        Self::of(case, 1, |settings| {
            settings.breaker.enabled = false;
            change(settings);
        })
        .await
    }

    /// Before so many workers.
    pub(crate) async fn of(case: &'static str, workers: usize, change: impl FnOnce(&mut Settings)) -> Self {
        let site = Site::start_with(site::workers(workers), PolicyKind::RoundRobin, change).await;
        Self { case, site, before: BTreeMap::new() }
    }

    /// What a new client sees of its request.
    pub(crate) async fn ask(&self, body: &str) -> String {
        saw(&mut self.site.client().await, body).await
    }

    /// Outcomes since the last row, as soon as there are so many of them.
    async fn since(&self, count: u64) -> BTreeMap<String, u64> {
        let mut since = BTreeMap::new();
        for _ in 0..2000 {
            since = outcomes(&self.site.metrics().await);
            for (outcome, before) in &self.before {
                *since.entry(outcome.clone()).or_default() -= before;
            }
            if since.values().sum::<u64>() >= count {
                break;
            }
        }
        since
    }

    /// The end: these are all the outcomes, no load is left on either side, and it prints its row.
    pub(crate) async fn ends(mut self, wanted: &str, saw: &str) -> Self {
        self.site.quiet().await;
        let count = wanted.split(", ").filter_map(|part| part.split(' ').next()?.parse::<u64>().ok()).sum();
        let since = self.since(count).await;
        assert_eq!(listed(&since), wanted, "{}: {saw}", self.case);
        let metrics = self.site.metrics().await;
        assert_eq!(site::sum(&metrics, "forebay_in_flight", &[]), 0, "{}", self.case);
        assert_eq!(site::sum(&metrics, "forebay_policy_invariant_violations_total", &[]), 0);
        let open: u64 = self.site.workers.iter().map(|worker| worker.stats().open_inference).sum();
        row(self.case, wanted, saw, &format!("router 0, workers {open}"));
        for (outcome, count) in since {
            *self.before.entry(outcome).or_default() += count;
        }
        self
    }
}

/// The end of a day of an application before workers of another kind: its outcomes, no load is left, and its row.
pub(crate) async fn ends(app: &App, case: &str, wanted: &str, saw: &str) {
    let idle = || app.reader().world().workers().iter().all(|worker| worker.in_flight() == 0);
    until("no load is left", idle).await;
    // A request is counted last of all, after its load came down.
    let mut admin = Client::connect(&app.admin_url()).await;
    let mut counted = String::new();
    for _ in 0..2000 {
        counted = listed(&outcomes(&admin.get("/metrics").await.text()));
        if counted == wanted {
            break;
        }
    }
    assert_eq!(counted, wanted, "{case}");
    row(case, wanted, saw, "router 0");
}

/// Sends a completion, and says in words what came.
pub(crate) async fn saw(client: &mut Client, body: &str) -> String {
    saw_of(client, &request("POST", "/v1/completions", &[], body.as_bytes())).await
}

/// Sends a request, and says in words what came.
pub(crate) async fn saw_of(client: &mut Client, bytes: &[u8]) -> String {
    client.send(bytes).await;
    let Ok(head) = client.head().await else { return "nothing, then the end".to_owned() };
    let (body, whole) = client.body_so_far(&head).await;
    let text = String::from_utf8_lossy(&body);
    let body = match (whole, head.text("content-type").unwrap_or_default().starts_with("text/event-stream")) {
        (false, _) if text.ends_with("data: [DONE]\n\n") => "[DONE], then cut".to_owned(),
        (false, _) => "cut".to_owned(),
        (true, true) => last_record(&text),
        (true, false) => match head.text("x-forebay-failure") {
            Some(failure) => {
                assert!(text.contains(&format!(r#""failure":"{failure}""#)), "{text}");
                failure
            }
            None if head.text("x-sim-worker").is_some() && head.status != 200 => "of the worker".to_owned(),
            None => "whole".to_owned(),
        },
    };
    format!("{} {body}", head.status)
}

fn last_record(text: &str) -> String {
    let records: Vec<_> = text.split_terminator("\n\n").collect();
    assert!(text.ends_with("\n\n") && records.iter().all(|record| record.starts_with("data: ")), "{text}");
    let last = records.last().unwrap();
    match last.split_once(r#""failure":""#) {
        Some((_, failure)) => {
            assert!(!text.contains("[DONE]"), "{text}");
            format!("{} records, then {}", records.len() - 1, failure.split('"').next().unwrap())
        }
        None if *last == "data: [DONE]" => "whole stream".to_owned(),
        None => format!("a stream without an end: {last}"),
    }
}

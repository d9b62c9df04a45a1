//! A harness: trials that alternate two policies over the same prompts, one client in fixed order. Equal trials are equal
//! because of the reset between them, and the policies differ in what their workers have to prefill.

use std::time::Duration;

use forebay::App;
use forebay_policy::PolicyKind;
use forebay_sim::WorkerOptions;
use forebay_sim::engine::EngineOptions;
use forebay_tests::{Client, run, site};
use serde_json::{Value, json};

const POLICIES: [PolicyKind; 2] = [PolicyKind::CacheAware, PolicyKind::RoundRobin];
const TRIALS: usize = 20;
const SEED: u64 = 7;
/// With four workers a rotation sends the turns of one conversation to different ones.
const WORKERS: usize = 4;
const CONVERSATIONS: usize = 7;
const TURNS: usize = 3;
/// Makes the first token of a prompt that no worker holds take some 25 ms.
const PREFILL_PER_TOKEN: Duration = Duration::from_micros(10);
/// By how much the median time to the first token under `round_robin` is to be above that under `cache_aware`.
const FACTOR: f64 = 1.3;

/// What a trial showed.
struct Trial {
    policy: PolicyKind,
    /// Of each request in order: the worker, why it was chosen, and the tokens that were cached there.
    choices: Vec<(String, String, u64)>,
    /// The report, but for what differs between equal trials.
    facts: Value,
    comparable: bool,
    /// Half of the prompts took their workers no longer to prefill, by what is declared of a token, in ms.
    declared_p50: f64,
    /// The median time to the first token as reported, in ms.
    ttft_p50: f64,
}

/// The prompts of a trial in order: all first turns, all second turns, …
fn prompts(seed: u64) -> Vec<String> {
    let mut state = seed;
    let mut draw = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let mut talks: Vec<String> =
        (0..CONVERSATIONS).map(|_| (0..1200).map(|_| format!("{:08x} ", draw())).collect()).collect();
    let mut prompts = Vec::new();
    for turn in 0..TURNS {
        for talk in &mut talks {
            talk.push_str(&format!("Question {turn}: {}?", draw()));
            let options = r#""max_tokens":2,"stream":true,"stream_options":{"include_usage":true}"#;
            prompts.push(format!(r#"{{"prompt":"{talk}",{options}}}"#));
            talk.push_str(&format!("Answer {turn}."));
        }
    }
    prompts
}

/// One client that sends one prompt after the other, and what came of it. The trial ends with it.
async fn run_trial(policy: PolicyKind, app: &App) -> Trial {
    let mut client = Client::connect(&app.url()).await;
    let (mut choices, mut prefilled) = (Vec::new(), Vec::new());
    for prompt in prompts(SEED) {
        let answer = client.post("/v1/completions", prompt).await;
        let text = answer.text();
        let usage = text.lines().rev().find(|line| line.contains(r#""usage":{"#)).unwrap();
        let usage: Value = serde_json::from_str(usage.strip_prefix("data: ").unwrap()).unwrap();
        let tokens = |at: &str| usage["usage"].pointer(at).unwrap().as_u64().unwrap();
        let cached = tokens("/prompt_tokens_details/cached_tokens");
        prefilled.push(tokens("/prompt_tokens") - cached);
        choices.push((answer.header("x-forebay-worker"), answer.header("x-forebay-decision"), cached));
    }
    prefilled.sort_unstable();
    let median = prefilled[prefilled.len() / 2] as f64;
    let mut admin = Client::connect(&app.admin_url()).await;
    let end = r#"{"only":["counters"],"wait_idle_secs":30,"require_idle":true}"#;
    let report = admin.post("/admin/reset", end).await.json()["previous"].take();
    assert_eq!((&report["final"], &report["requests"]["ended"]), (&true.into(), &prefilled.len().into()));
    Trial {
        policy,
        choices,
        comparable: report["comparable"] == true,
        declared_p50: median * PREFILL_PER_TOKEN.as_secs_f64() * 1000.0,
        ttft_p50: report["times"]["first_token_ms"]["p50"].as_f64().unwrap(),
        facts: facts(report),
    }
}

/// A report without what differs between equal trials: which one it was, when it was, how long things took, and whether
/// two requests overlapped.
fn facts(mut report: Value) -> Value {
    let own = ["epoch", "trial", "began_by", "began_unix", "ended_unix", "times", "load", "invariants"];
    for name in own {
        assert!(report.as_object_mut().unwrap().remove(name).is_some(), "{name}");
    }
    for worker in report["workers"].as_array_mut().unwrap() {
        assert!(worker.as_object_mut().unwrap().remove("peak_in_flight").is_some());
    }
    report
}

/// Alternates the policies, each in an application of its own in front of the same workers.
async fn alternate(apps: &[App; 2], count: usize, reset: bool) -> Vec<Trial> {
    let mut trials = Vec::new();
    for number in 0..count {
        let (policy, app) = (POLICIES[number % 2], &apps[number % 2]);
        if reset {
            let order = json!({
                "trial": format!("{policy}-{number}"), "seed": SEED, "wait_idle_secs": 30, "require_idle": true,
                "reset_workers_prefix_cache": true,
            });
            let answer =
                Client::connect(&app.admin_url()).await.post("/admin/reset", order.to_string()).await.json();
            let emptied = |worker: &Value| worker["prefix_cache"]["outcome"] == "emptied";
            assert!(answer["workers"].as_array().unwrap().iter().all(emptied), "{answer}");
        }
        trials.push(run_trial(policy, app).await);
    }
    trials
}

fn of(trials: &[Trial], policy: PolicyKind) -> Vec<&Trial> {
    trials.iter().filter(|trial| trial.policy == policy).collect()
}

fn are_equal(one: &Trial, other: &Trial) -> bool {
    (&one.choices, &one.facts) == (&other.choices, &other.facts)
}

/// The least and the greatest.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, 0.0), |(low, high), value| (low.min(value), high.max(value)))
}

#[test]
fn equal_trials_are_equal_with_a_reset_and_not_without_and_policies_differ_in_ttft() {
    run(async {
        let engine = EngineOptions { prefill_per_token: PREFILL_PER_TOKEN, ..EngineOptions::default() };
        let engine =
            EngineOptions { decode_per_token: Duration::from_micros(200), blocks: 1 << 16, ..engine };
        let workers: Vec<_> = (0..WORKERS)
            .map(|i| site::worker(WorkerOptions::engine(engine).named(format!("w{i}"))))
            .collect();
        let urls: Vec<String> = workers.iter().map(|worker| worker.url()).collect();
        let start = async |policy| {
            let mut settings = site::settings(policy, &urls);
            settings.router.expose_routing_headers = true;
            site::start(&settings).await
        };
        let apps = [start(POLICIES[0]).await, start(POLICIES[1]).await];
        let trials = alternate(&apps, TRIALS, true).await;
        for policy in POLICIES {
            let trials = of(&trials, policy);
            assert_eq!(trials.len(), TRIALS / 2);
            for trial in &trials {
                assert!(trial.comparable);
                assert_eq!(
                    (&trial.choices, &trial.facts),
                    (&trials[0].choices, &trials[0].facts),
                    "{policy}"
                );
            }
            let ttft = range(trials.iter().map(|trial| trial.ttft_p50));
            let declared = range(trials.iter().map(|trial| trial.declared_p50));
            println!(
                "{policy}: TTFT p50 of {} trials {ttft:.2?} ms, prefill {declared:.2?} ms",
                trials.len()
            );
        }
        let [fast, slow] = POLICIES.map(|policy| of(&trials, policy));
        let most = range(fast.iter().map(|trial| trial.declared_p50)).1;
        let least = range(slow.iter().map(|trial| trial.declared_p50)).0;
        assert!(least >= FACTOR * most, "declared prefill: {least} against {most} ms");
        // A worker never answers before it has prefilled.
        assert!(slow.iter().all(|trial| trial.ttft_p50 >= least));

        let control = alternate(&apps, 6, false).await;
        for policy in POLICIES {
            let control = of(&control, policy);
            assert!(!are_equal(control[0], of(&trials, policy)[0]), "{policy}: something was left behind");
            assert!(control.windows(2).any(|two| !are_equal(two[0], two[1])), "{policy} without a reset");
        }
    });
}

//! The ways in which vLLM spreads its ranks over URLs, and ranks that come and go while it serves.

use std::time::Duration;

use forebay_discovery::RankCount;
use forebay_policy::PolicyKind;
use forebay_sim::{Worker, WorkerOptions};
use forebay_tests::{Site, run, site};
use forebay_workers::Ranks;

const WHOLE: &str = r#"{"prompt":"a","max_tokens":2}"#;

/// A URL with so many ranks, which are these among the ranks of all URLs. In its head it counts them from 0.
fn part(engines: std::ops::Range<u32>) -> Worker {
    let (first_engine, ranks) = (engines.start, 0..engines.end - engines.start);
    site::worker(WorkerOptions { ranks, first_engine, ..WorkerOptions::recording() })
}

/// Named `host:port@rank` by the place of its URL: `0@1` is the second rank of the first URL.
fn names(site: &Site) -> Vec<String> {
    let world = site.app.reader().world();
    let place = |url: &str| site.workers.iter().position(|worker| worker.url() == url).unwrap();
    let mut names: Vec<String> = world
        .workers()
        .iter()
        .map(|worker| {
            let url = place(worker.url().as_str());
            worker.dp_rank().map_or(url.to_string(), |rank| format!("{url}@{rank}"))
        })
        .collect();
    names.sort();
    names
}

/// What the rank headers of the prompts said that a worker got, in order of value.
fn told(worker: &Worker) -> Vec<Option<String>> {
    let prompts = worker.requests_to("/v1/completions");
    let mut told: Vec<_> =
        prompts.iter().map(|request| request.header("x-data-parallel-rank").map(str::to_owned)).collect();
    told.sort();
    told
}

async fn send(site: &Site, count: usize) {
    let mut client = site.client().await;
    for _ in 0..count {
        let answer = client.post("/v1/completions", WHOLE).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
    }
}

#[test]
fn hybrid_each_node_is_told_its_own_ranks_by_their_numbers_on_that_node() {
    run(async {
        for ranks in [RankCount::Asked, RankCount::Given(Ranks::first(2).unwrap())] {
            let nodes = vec![part(0..2), part(2..4)];
            let site = Site::start_with(nodes, PolicyKind::RoundRobin, |settings| settings.ranks = ranks);
            let site = site.await;
            assert_eq!(names(&site), ["0@0", "0@1", "1@0", "1@1"]);
            send(&site, 8).await;
            for node in &site.workers {
                let wanted = ["0", "0", "1", "1"].map(|rank| Some(rank.to_owned()));
                assert_eq!(told(node), wanted);
            }
            site.quiet().await;
        }
    });
}

#[test]
fn external_and_multi_port_each_url_is_one_worker_and_hears_of_no_rank() {
    run(async {
        for ranks in [RankCount::Asked, RankCount::default()] {
            // On nodes of their own, or on ports in a row: each URL has one engine, which says which one of all it is.
            let workers = (0..4).map(|rank| part(rank..rank + 1)).collect();
            let site = Site::start_with(workers, PolicyKind::RoundRobin, |settings| settings.ranks = ranks);
            let site = site.await;
            assert_eq!(names(&site), ["0", "1", "2", "3"]);
            send(&site, 8).await;
            assert!(site.workers.iter().all(|worker| told(worker) == [None, None]));
            site.quiet().await;
        }
    });
}

#[test]
fn a_url_that_has_become_one_rank_of_many_is_told_that_one() {
    run(async {
        let settings = |settings: &mut forebay::settings::Settings| settings.ranks = RankCount::Asked;
        let site = Site::start_with(vec![part(0..2)], PolicyKind::RoundRobin, settings).await;
        site.workers[0].set_ranks(3..4);
        send(&site, 3).await;
        assert_eq!(names(&site), ["0@3"]);
        let wanted = ["0", "3", "3", "3"].map(|rank| Some(rank.to_owned()));
        assert_eq!(told(&site.workers[0]), wanted, "one refusal");
        site.quiet().await;
    });
}

#[test]
fn one_probe_is_enough_to_notice_that_there_are_more_or_fewer_ranks() {
    run(async {
        let settings = |settings: &mut forebay::settings::Settings| {
            settings.ranks = RankCount::Asked;
            // No probe but those that are asked for.
            settings.health.interval = Duration::from_secs(3600);
        };
        let site = Site::start_with(vec![part(0..2)], PolicyKind::RoundRobin, settings).await;
        let probes = || site.workers[0].requests_to("/health").len();
        for ranks in [4, 1, 3] {
            site.workers[0].set_ranks(0..ranks);
            let before = probes();
            let world = site.app.reader().world();
            world.hosts()[0].look_now();
            site.app.reader().wait_for(|world| world.workers().len() == ranks as usize).await;
            assert_eq!(probes(), before + 1);
        }
        send(&site, 3).await;
        site.quiet().await;
    });
}

#[test]
fn trees_of_requests_that_no_rank_can_be_told_are_in_reports_and_series() {
    run(async {
        let given = RankCount::Given(Ranks::first(2).unwrap());
        let site =
            Site::start_with(vec![part(0..2)], PolicyKind::CacheAware, |settings| settings.ranks = given);
        let site = site.await;
        let (mut client, mut admin) = (site.client().await, site.admin().await);
        let before = site.metric("forebay_tree_bytes", &[]).await;
        let body = format!(r#"{{"input":"{}"}}"#, "word ".repeat(20_000));
        for _ in 0..2 {
            assert_eq!(client.post("/v1/embeddings", &body).await.status(), 200);
        }
        assert!(site.metric("forebay_tree_bytes", &[]).await >= before + 8 * 1000);
        admin.post("/admin/reset/counters", "").await;
        let report = admin.get("/admin/trial").await.json();
        assert_eq!(report["config"]["tree"], "warm(2)", "{report}");
    });
}

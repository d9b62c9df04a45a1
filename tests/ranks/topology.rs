//! Which ranks there are: given, asked for, and corrected by what a worker refuses.

use forebay::App;
use forebay::startup::StartupError;
use forebay_discovery::RankCount;
use forebay_policy::PolicyKind;
use forebay_sim::WorkerOptions;
use forebay_tests::{Site, run, site};
use forebay_workers::Ranks;

const WHOLE: &str = r#"{"prompt":"a","max_tokens":2}"#;

fn worker(ranks: std::ops::Range<u32>) -> forebay_sim::Worker {
    site::worker(WorkerOptions { ranks, ..WorkerOptions::recording() })
}

fn shown(app: &App) -> Vec<Option<u32>> {
    app.reader().world().workers().iter().map(|worker| worker.dp_rank()).collect()
}

async fn start(workers: Vec<forebay_sim::Worker>, ranks: RankCount) -> Site {
    let site = Site::start_with(workers, PolicyKind::RoundRobin, |settings| settings.ranks = ranks);
    site.await
}

fn ranks_told(worker: &forebay_sim::Worker) -> Vec<Option<String>> {
    let prompts = worker.requests_to("/v1/completions");
    prompts.iter().map(|r| r.header("x-data-parallel-rank").map(str::to_owned)).collect()
}

#[test]
fn each_worker_of_a_mixed_fleet_is_asked_how_many_ranks_it_has() {
    run(async {
        // Ranks inside; one URL for each rank, as in the external modes; and none at all.
        let site = start(vec![worker(0..3), worker(0..1), worker(0..1)], RankCount::Asked).await;
        assert_eq!(shown(&site.app), [None, None, Some(0), Some(1), Some(2)]);
        let mut client = site.client().await;
        for _ in 0..10 {
            assert_eq!(client.post("/v1/completions", WHOLE).await.status(), 200);
        }
        let mut told = ranks_told(&site.workers[0]);
        told.sort();
        assert_eq!(told.len(), 6, "three ranks of five workers");
        assert_eq!(told.iter().flatten().collect::<Vec<_>>(), ["0", "0", "1", "1", "2", "2"]);
        for external in &site.workers[1..] {
            assert_eq!(ranks_told(external), [None, None], "a rank that is alone is not told");
        }
        site.quiet().await;
    });
}

#[test]
fn another_number_of_ranks_than_was_given_is_told_with_both() {
    run(async {
        let worker = worker(0..2);
        let mut settings = site::settings(PolicyKind::RoundRobin, &[worker.url()]);
        settings.ranks = RankCount::Given(Ranks::first(4).unwrap());
        let app = App::start(&settings).unwrap();
        let error = StartupError::ranks(&app.misfit().await);
        let expected = format!(
            "--intra-node-data-parallel-size: 4 was given, but {} has 2; give 2, or auto",
            worker.url()
        );
        assert_eq!((error.to_string(), error.exit_code()), (expected, 2));
    });
}

#[test]
fn a_refused_rank_corrects_what_is_known_and_its_client_does_not_notice() {
    run(async {
        // What the worker says when it is asked lets nobody guess that its rank is called 5.
        let site = start(vec![worker(0..2)], RankCount::Asked).await;
        site.workers[0].set_ranks(5..7);
        let mut client = site.client().await;
        for _ in 0..4 {
            assert_eq!(client.post("/v1/completions", WHOLE).await.status(), 200);
        }
        assert_eq!(shown(&site.app), [Some(5), Some(6)]);
        let told: Vec<_> = ranks_told(&site.workers[0]).into_iter().flatten().collect();
        assert_eq!(told, ["0", "5", "6", "5", "6"], "one refusal, and no more");
        site.workers[0].set_ranks(0..2);
        assert_eq!(client.post("/v1/completions", WHOLE).await.status(), 200);
        assert_eq!(shown(&site.app), [Some(0), Some(1)]);
        assert_eq!(
            site.metric("forebay_requests_total", &["outcome=\"completed\"", "/v1/completions"]).await,
            5
        );
        site.quiet().await;
    });
}

#[test]
fn a_400_that_is_about_something_else_reaches_its_client_as_it_is() {
    run(async {
        let site = start(vec![worker(0..2)], RankCount::Asked).await;
        let answer =
            site.client().await.post("/v1/completions", r#"{"prompt":"a","max_tokens":99999}"#).await;
        assert_eq!(answer.status(), 400);
        assert!(answer.text().contains("max_tokens=99999 cannot be greater"), "{}", answer.text());
        assert_eq!(site.workers[0].requests_to("/v1/completions").len(), 1);
        site.quiet().await;
    });
}

#[test]
fn a_url_that_refuses_connections_takes_all_its_ranks_along() {
    run(async {
        let site = start(vec![worker(0..4), worker(0..4)], RankCount::Asked).await;
        site.workers[0].refuse_connections().await;
        let mut client = site.client().await;
        for _ in 0..16 {
            assert_eq!(client.post("/v1/completions", WHOLE).await.status(), 200);
        }
        assert_eq!(site.workers[1].requests_to("/v1/completions").len(), 16);
        // One request met it, whatever the number of ranks.
        assert_eq!(site.metric("forebay_retries_total", &["unreachable"]).await, 1);
        site.quiet().await;
    });
}

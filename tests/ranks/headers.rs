//! The one header that names a rank: whose it is, on which routes, and where the load is counted.

use forebay_discovery::RankCount;
use forebay_policy::PolicyKind;
use forebay_sim::{Recorded, Stage, WorkerOptions};
use forebay_tests::{Site, request, run, site, until};
use forebay_workers::Ranks;

const RANK: &str = "x-data-parallel-rank";

/// Routes that read the header, each with a body.
const RANKED: [(&str, &str); 5] = [
    ("/v1/chat/completions", r#"{"messages":[{"role":"user","content":"a"}],"max_tokens":2}"#),
    ("/v1/completions", r#"{"prompt":"a","max_tokens":2}"#),
    ("/v1/responses", r#"{"input":"a","max_output_tokens":2}"#),
    ("/v1/messages", r#"{"messages":[{"role":"user","content":"a"}],"max_tokens":2}"#),
    ("/inference/v1/generate", r#"{"token_ids":[1,2,3],"sampling_params":{"max_tokens":2}}"#),
];

/// Routes that do not.
const UNRANKED: [(&str, &str); 5] = [
    ("/v1/embeddings", r#"{"input":"a"}"#),
    ("/pooling", r#"{"input":"a"}"#),
    ("/score", r#"{"text_1":"a","text_2":"b"}"#),
    ("/rerank", r#"{"query":"a","documents":["b"]}"#),
    ("/tokenize", r#"{"prompt":"a"}"#),
];

async fn start(workers: usize, ranks: u32, change: impl FnOnce(&mut forebay::settings::Settings)) -> Site {
    let options = |i| WorkerOptions::recording().named(format!("w{i}")).with_ranks(ranks);
    let workers = (0..workers).map(|i| site::worker(options(i))).collect();
    Site::start_with(workers, PolicyKind::RoundRobin, |settings| {
        settings.ranks = RankCount::Given(Ranks::first(ranks).unwrap());
        change(settings);
    })
    .await
}

/// Every value of the rank header in the raw head of a request.
fn ranks_in(recorded: &Recorded) -> Vec<String> {
    let head = String::from_utf8(recorded.head.to_vec()).unwrap();
    let lines = head.lines().filter_map(|line| line.split_once(':'));
    lines
        .filter(|(name, _)| name.eq_ignore_ascii_case(RANK))
        .map(|(_, value)| value.trim().to_owned())
        .collect()
}

#[test]
fn a_forged_rank_never_arrives_and_exactly_one_of_ours_does() {
    run(async {
        let site = start(1, 4, |_| ()).await;
        let mut client = site.client().await;
        for forged in
            [&[("X-Data-Parallel-Rank", "7")][..], &[(RANK, "7"), (RANK, "8")], &[(RANK, "abc")], &[]]
        {
            for (path, body) in RANKED {
                client.send(&request("POST", path, forged, body.as_bytes())).await;
                assert_eq!(client.answer().await.unwrap().status(), 200, "{path}");
            }
        }
        let requests: Vec<_> =
            RANKED.iter().flat_map(|(path, _)| site.workers[0].requests_to(path)).collect();
        assert_eq!(requests.len(), 4 * RANKED.len());
        let mut seen = [0; 4];
        for recorded in &requests {
            let ranks = ranks_in(recorded);
            assert_eq!(ranks.len(), 1, "{:?}", recorded.head);
            seen[ranks[0].parse::<usize>().unwrap()] += 1;
        }
        assert_eq!(seen, [5; 4], "each rank in turn");
        assert_eq!(site.metric("forebay_stripped_total", &[RANK]).await, 4 * RANKED.len() as u64);
        site.quiet().await;
    });
}

#[test]
fn routes_that_read_no_rank_get_none_and_load_the_url_as_a_whole() {
    run(async {
        let site = start(2, 2, |_| ()).await;
        let mut client = site.client().await;
        for (path, body) in UNRANKED {
            client.send(&request("POST", path, &[(RANK, "1")], body.as_bytes())).await;
            assert_eq!(client.answer().await.unwrap().status(), 200, "{path}");
        }
        for worker in &site.workers {
            assert!(worker.requests().iter().all(|recorded| ranks_in(recorded).is_empty()));
        }
        let gate = site.workers[0].hold(Stage::BeforeHead);
        let mut held = Vec::new();
        for _ in 0..2 {
            let mut client = site.client().await;
            client.send(&request("POST", "/v1/embeddings", &[], br#"{"input":"a"}"#)).await;
            held.push(client);
        }
        until("one of two waits there", || gate.held() == 1).await;
        site.loads_agree().await;
        let world = site.app.reader().world();
        assert!(world.workers().iter().all(|rank| rank.in_flight() == 0), "no rank has it");
        assert_eq!(world.wholes()[0].in_flight(), 1);
        let url = format!("worker=\"{}\"", site.workers[0].url());
        assert_eq!(site.metric("forebay_in_flight", &[&url]).await, 1);
        drop((gate, held));
        site.quiet().await;
    });
}

#[test]
fn a_client_may_insist_on_a_rank_where_that_is_honoured() {
    run(async {
        let site = start(2, 2, |settings| settings.router.honor_client_dp_rank = true).await;
        let mut client = site.client().await;
        for (path, body) in RANKED {
            for _ in 0..3 {
                client.send(&request("POST", path, &[(RANK, "1")], body.as_bytes())).await;
                assert_eq!(client.answer().await.unwrap().status(), 200);
            }
        }
        let requests: Vec<_> = site.workers.iter().flat_map(|worker| worker.requests()).collect();
        let prompts = requests.iter().filter(|r| RANKED.iter().any(|(path, _)| r.path() == *path));
        assert!(prompts.clone().count() == 15 && prompts.clone().all(|r| ranks_in(r) == ["1"]));
        let each = site.workers.iter().map(|worker| worker.requests_to("/v1/messages").len());
        assert!(each.clone().all(|count| count > 0), "on both URLs");
        client.send(&request("POST", "/v1/completions", &[(RANK, "2")], RANKED[1].1.as_bytes())).await;
        let answer = client.answer().await.unwrap();
        assert_eq!(
            (answer.status(), answer.header("x-forebay-failure").as_str()),
            (400, "router_rank_unknown")
        );
        assert!(answer.text().contains("data_parallel_rank 2 is out of range"), "{}", answer.text());
        client
            .send(&request("POST", "/v1/completions", &[(RANK, "1"), (RANK, "0")], RANKED[1].1.as_bytes()))
            .await;
        assert_eq!(client.answer().await.unwrap().status(), 200, "two ranks are none");
        site.quiet().await;
    });
}

#[test]
fn the_list_of_workers_and_the_metrics_show_ranks() {
    run(async {
        let site = start(1, 2, |settings| settings.router.expose_routing_headers = true).await;
        let answer = site.client().await.post("/v1/completions", RANKED[1].1).await;
        assert_eq!(answer.header("x-forebay-worker"), format!("{}@0", site.workers[0].url()));
        let list = site.admin().await.get("/workers").await.json();
        let shown: Vec<_> =
            list["workers"].as_array().unwrap().iter().map(|w| (&w["rank"], &w["requests"])).collect();
        assert_eq!(shown, [(&0.into(), &1.into()), (&1.into(), &0.into())]);
        for rank in ["dp_rank=\"0\"", "dp_rank=\"1\""] {
            assert_eq!(site.metric("forebay_worker_eligible", &[rank]).await, 1);
        }
        assert_eq!(site.metric("forebay_policy_decisions_total", &["dp_rank=\"0\""]).await, 1);
        site.quiet().await;
    });
}

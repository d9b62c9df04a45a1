//! Trials that requests name by a header: what is counted of each, and what else of them is seen.

use forebay_policy::PolicyKind;
use forebay_tests::{Client, Site, run, site};
use serde_json::Value;

const WHOLE: &[u8] = br#"{"prompt":"a","max_tokens":4}"#;

async fn ask(client: &mut Client, trial: &str) -> u16 {
    client.ask("POST", "/v1/completions", &[("X-Forebay-Trial", trial)], WHOLE).await.status()
}

/// The report of the current trial, in which so many requests have ended.
async fn report(site: &Site, ended: u64) -> Value {
    let report = site.admin().await.get("/admin/trial").await.json();
    assert_eq!(report["requests"]["ended"], ended);
    report
}

#[test]
fn each_named_trial_has_its_own_counts_and_none_of_them_can_be_compared() {
    run(async {
        let site = Site::start(2, PolicyKind::RoundRobin).await;
        let mut client = site.client().await;
        for name in ["a", "b", "a", "a b"] {
            assert_eq!(ask(&mut client, name).await, 200);
        }
        assert_eq!(client.post("/v1/completions", WHOLE).await.status(), 200);
        let all = report(&site, 5).await;
        assert_eq!(all["reasons"][0]["code"], "shared_router", "{all}");
        let told: Vec<_> = all["trials"]
            .as_array()
            .unwrap()
            .iter()
            .map(|part| (part["trial"].as_str().unwrap(), part["requests"]["ended"].as_u64().unwrap()))
            .collect();
        assert_eq!(told, [("b", 1), ("a", 2), ("a b", 1)], "in the order of their last requests");
        let mut admin = site.admin().await;
        let a = admin.get("/admin/trial?trial=a").await.json();
        assert_eq!((&a["comparable"], &a["reasons"][0]["code"]), (&false.into(), &"shared_router".into()));
        assert_eq!(a["requests"]["outcomes"]["completed"], 2, "{a}");
        assert_eq!(a["decisions"]["rotation"], 2, "{a}");
        assert_eq!(
            (a["workers"].as_array().unwrap().len(), &a["workers"][0]["requests"]),
            (1, &2.into()),
            "{a}"
        );
        assert_eq!(a["times"]["end_to_end_ms"]["count"], 2);
        assert_eq!(admin.get("/admin/trials/1?trial=a%20b").await.json()["trial"], "a b");
        assert_eq!(admin.get("/admin/trial?trial=c").await.status(), 404);
        assert_eq!(admin.get("/admin/trial?name=a").await.status(), 400);
    });
}

#[test]
fn requests_of_one_named_trial_alone_share_the_router_with_nobody() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let mut client = site.client().await;
        assert_eq!(ask(&mut client, "a").await, 200);
        let all = report(&site, 1).await;
        assert_eq!(
            (&all["comparable"], &all["trials"][0]["requests"]["ended"]),
            (&true.into(), &1.into()),
            "{all}"
        );
        site.admin().await.post("/admin/reset", "").await;
        assert_eq!(ask(&mut client, "a").await, 200);
        let next = report(&site, 1).await;
        assert_eq!(next["trials"][0]["requests"]["ended"], 1, "a reset ends named trials too: {next}");
    });
}

#[test]
fn the_name_of_a_trial_never_comes_to_a_worker_and_one_that_is_none_is_refused() {
    run(async {
        for trusted in [false, true] {
            let site = Site::start_with(site::workers(1), PolicyKind::RoundRobin, |settings| {
                settings.router.trust_client_internals = trusted;
            })
            .await;
            let mut client = site.client().await;
            let paths =
                ["/v1/completions", "/v1/chat/completions", "/tokenize", "/v1/new", "/reset_prefix_cache"];
            for path in paths {
                let headers = [("x-FOREBAY-trial", "mine"), ("connection", "x-forebay-trial, keep-alive")];
                client.ask("POST", path, &headers, WHOLE).await;
                let recorded = site.workers[0].requests_to(path).pop().unwrap();
                let head = String::from_utf8_lossy(&recorded.head).to_ascii_lowercase();
                assert!(!head.contains("trial") && !head.contains("mine"), "{path}: {head}");
            }
            let long = "x".repeat(129);
            for odd in ["", "\u{fc}", "a\tb", &long] {
                let answer = client.ask("POST", "/v1/completions", &[("x-forebay-trial", odd)], WHOLE).await;
                assert_eq!(answer.status(), 400, "{odd}");
                assert_eq!(answer.header("x-forebay-failure"), "router_trial_invalid");
            }
            let twice = [("x-forebay-trial", "a"), ("x-forebay-trial", "b")];
            assert_eq!(client.ask("POST", "/v1/completions", &twice, WHOLE).await.status(), 400);
            assert_eq!(site.workers[0].requests_to("/v1/completions").len(), 1, "refused before any worker");
        }
    });
}

#[test]
fn series_name_the_current_trial_and_count_the_requests_of_each_that_has_a_name() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let mut client = site.client().await;
        assert_eq!(site.metric("forebay_trial_info", &[r#"epoch="1""#, r#"trial="""#]).await, 1);
        assert_eq!(ask(&mut client, "by header").await, 200);
        assert_eq!(client.post("/v1/completions", WHOLE).await.status(), 200);
        report(&site, 2).await;
        site.admin().await.post("/admin/reset", r#"{"trial":"t-1"}"#).await;
        for _ in 0..3 {
            assert_eq!(client.post("/v1/completions", WHOLE).await.status(), 200);
        }
        assert_eq!(client.post("/v1/completions", "{").await.status(), 400);
        report(&site, 4).await;
        let text = site.metrics().await;
        let info: Vec<&str> = text.lines().filter(|line| line.starts_with("forebay_trial_info{")).collect();
        assert_eq!(info, [r#"forebay_trial_info{epoch="2",trial="t-1"} 1"#]);
        let sum = |labels: &[&str]| site::sum(&text, "forebay_run_requests_total", labels);
        assert_eq!(sum(&[r#"run_id="by header""#, r#"outcome="completed""#]), 1);
        assert_eq!(sum(&[r#"run_id="t-1""#, r#"model="tiny""#, r#"outcome="completed""#]), 3);
        assert_eq!(sum(&[r#"run_id="t-1""#, r#"outcome="refused""#]), 1);
        assert_eq!(sum(&[]), 5, "requests of trials without a name have no run");
        assert_eq!(site::sum(&text, "forebay_requests_total", &["/v1/completions"]), 6, "{text}");
        // The last hundred runs have series.
        for number in 0..100 {
            site.admin().await.post("/admin/reset", format!(r#"{{"trial":"n-{number}"}}"#)).await;
            assert_eq!(client.post("/v1/completions", WHOLE).await.status(), 200);
        }
        report(&site, 1).await;
        let text = site.metrics().await;
        let runs = text.lines().filter(|line| line.starts_with("forebay_run_requests_total{"));
        assert_eq!(runs.count(), 100, "{text}");
        assert_eq!(site::sum(&text, "forebay_run_requests_total", &[r#"run_id="t-1""#]), 0);
    });
}

#[test]
fn requests_that_name_the_trial_that_a_reset_began_are_counted_once_in_its_series() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let mut client = site.client().await;
        for (name, count) in [("t", 1), ("u", 2)] {
            site.admin().await.post("/admin/reset", format!(r#"{{"trial":"{name}"}}"#)).await;
            assert_eq!(ask(&mut client, "t").await, 200);
            report(&site, 1).await;
            let text = site.metrics().await;
            assert_eq!(site::sum(&text, "forebay_run_requests_total", &[r#"run_id="t""#]), count, "{text}");
        }
    });
}

#[test]
fn a_trial_that_several_shared_is_not_comparable_after_a_hundred_others_were_named_either() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let (mut client, mut admin) = (site.client().await, site.admin().await);
        for names in [["a", "b"], ["c", "c"]] {
            for name in names {
                assert_eq!(ask(&mut client, name).await, 200);
            }
            report(&site, 2).await;
            admin.post("/admin/reset", "").await;
        }
        let mut told = Vec::new();
        for _ in 0..2 {
            let of = async |admin: &mut Client, epoch: u64| {
                let report = admin.get(&format!("/admin/trials/{epoch}")).await.json();
                (report["comparable"].as_bool().unwrap(), report["reasons"].clone())
            };
            told.push([of(&mut admin, 1).await, of(&mut admin, 2).await]);
            for number in 0..100 {
                assert_eq!(ask(&mut client, &number.to_string()).await, 200);
            }
        }
        assert_eq!([told[0][0].0, told[0][1].0], [false, true]);
        assert_eq!(told[0], told[1], "what was told of a trial that is over stays");
    });
}

//! A reset begins a trial without touching what is under way.

use forebay_policy::PolicyKind;
use forebay_sim::Stage;
use forebay_tests::{Site, request, run};

const STREAM: &str = r#"{"prompt":"a","max_tokens":8,"stream":true}"#;

#[test]
fn a_reset_during_streams_leaves_them_and_their_loads() {
    run(async {
        let site = Site::start(2, PolicyKind::PowerOfTwo).await;
        let gates: Vec<_> = site.workers.iter().map(|worker| worker.hold(Stage::AfterChunks(2))).collect();
        let mut clients = Vec::new();
        for _ in 0..6 {
            let mut client = site.client().await;
            client.send(&request("POST", "/v1/completions", &[], STREAM.as_bytes())).await;
            client.head().await.unwrap();
            clients.push(client);
        }
        site.loads_agree().await;
        let before = [site.in_flight(0), site.in_flight(1)];
        assert_eq!(before.iter().sum::<u64>(), 6);
        for epoch in 2..5 {
            let answer = site.admin().await.post("/admin/reset", "").await;
            assert_eq!((answer.status(), site.epoch()), (200, epoch));
            assert_eq!(
                [site.in_flight(0), site.in_flight(1)],
                before,
                "loads are of the workers, not of the trial"
            );
        }
        drop(gates);
        for mut client in clients {
            while client.chunk().await.unwrap().is_some() {}
        }
        site.quiet().await;
        assert_eq!(site.metric("forebay_policy_invariant_violations_total", &[]).await, 0);
        assert_eq!(site.metric("forebay_reset_total", &[]).await, 3);
    });
}

#[test]
fn a_reset_begins_all_counts_of_choices_and_keeps_the_seed_unless_told() {
    run(async {
        let site = Site::start(2, PolicyKind::Random).await;
        let mut admin = site.admin().await;
        site.choices(10, |_| r#"{"prompt":"a","max_tokens":1}"#.to_owned()).await;
        let chosen = |list: serde_json::Value| -> u64 {
            list["workers"]
                .as_array()
                .unwrap()
                .iter()
                .map(|worker| worker["requests"].as_u64().unwrap())
                .sum()
        };
        assert_eq!(chosen(admin.get("/workers").await.json()), 10);
        admin.post("/admin/reset", "").await;
        assert_eq!(chosen(admin.get("/workers").await.json()), 0);
        assert_eq!(site.app.reader().world().seed(), 0);
        admin.post("/admin/reset", r#"{"seed":99}"#).await;
        assert_eq!(site.app.reader().world().seed(), 99);
        admin.post("/admin/reset", "  ").await;
        assert_eq!((site.app.reader().world().seed(), site.epoch()), (99, 4));
    });
}

#[test]
fn a_reset_that_cannot_be_understood_changes_nothing() {
    run(async {
        let site = Site::start(1, PolicyKind::Random).await;
        let mut admin = site.admin().await;
        for body in ["{", "[]", r#"{"sed":1}"#, r#"{"seed":-1}"#, r#"{"seed":"1"}"#, r#"{"seed":1.5}"#, "7"] {
            assert_eq!(admin.post("/admin/reset", body).await.status(), 400, "{body}");
        }
        for method in ["GET", "PUT", "DELETE"] {
            assert_eq!(admin.ask(method, "/admin/reset", &[], b"").await.status(), 405);
        }
        assert_eq!(site.epoch(), 1);
    });
}

//! What a report says of caches and of keys.

use forebay_policy::PolicyKind;
use forebay_tests::{Site, run, site};

#[test]
fn cached_tokens_are_summed_under_a_policy_that_predicts_none_and_keys_by_address_raise_a_doubt() {
    run(async {
        for (policy, doubt) in
            [(PolicyKind::RoundRobin, None), (PolicyKind::ConsistentHash, Some("keys_by_client_ip"))]
        {
            let site = Site::start_with(site::workers(1), policy, |settings| {
                settings.router.hash_key = vec![forebay_policy::HashKeyKind::ClientIp];
            })
            .await;
            let body = format!(r#"{{"prompt":"{}","max_tokens":1}}"#, "word ".repeat(200));
            site.choices(2, |_| body.clone()).await;
            let report = site.admin().await.get("/admin/trial").await.json();
            assert_eq!(report["tokens"]["cached_answers"], 2, "{report}");
            assert!(report["tokens"]["cached"].as_u64() > Some(0), "the second prompt was cached: {report}");
            assert_eq!(report["workers"][0]["peak_in_flight"], 1);
            assert_eq!(report["reasons"][0]["code"].as_str(), doubt, "{report}");
        }
    });
}

#[test]
fn keys_by_authorization_raise_a_doubt_and_keys_that_clients_mean_raise_none() {
    run(async {
        let site = Site::start(2, PolicyKind::ConsistentHash).await;
        let mut client = site.client().await;
        let mut admin = site.admin().await;
        for (headers, doubt) in [
            (vec![("authorization", "Bearer one"), ("x-session-id", "s")], None),
            (vec![("authorization", "Bearer one")], Some("keys_by_authorization")),
        ] {
            let body = br#"{"prompt":"a","max_tokens":1}"#;
            assert_eq!(client.ask("POST", "/v1/completions", &headers, body).await.status(), 200);
            let end = r#"{"wait_idle_secs":30,"require_idle":true}"#;
            let report = admin.post("/admin/reset", end).await.json()["previous"].take();
            assert_eq!(report["requests"]["ended"], 1);
            assert_eq!(report["reasons"][0]["code"].as_str(), doubt, "{report}");
            assert_eq!(report["comparable"], doubt.is_none());
        }
    });
}

#[test]
fn caches_that_are_emptied_in_its_midst_raise_a_doubt_and_before_its_first_request_none() {
    run(async {
        let site = Site::start(2, PolicyKind::RoundRobin).await;
        let (mut client, mut admin) = (site.client().await, site.admin().await);
        for order in ["/reset_prefix_cache", "/sleep", "/flush_cache"] {
            for has_begun in [false, true] {
                if has_begun {
                    site.choices(2, |_| r#"{"prompt":"a","max_tokens":1}"#.to_owned()).await;
                }
                let to = if order == "/flush_cache" { &mut admin } else { &mut client };
                assert_eq!(to.ask("POST", order, &[], b"").await.status(), 200, "{order}");
                if order == "/sleep" {
                    assert_eq!(client.ask("POST", "/wake_up", &[], b"").await.status(), 200);
                }
                let report = admin.get("/admin/trial").await.json();
                let codes: Vec<_> = report["reasons"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|reason| reason["code"].as_str().unwrap())
                    .collect();
                let doubts: &[&str] = if has_begun { &["prefix_cache_emptied"] } else { &[] };
                assert_eq!(codes, doubts, "{order}: {report}");
            }
            let end = r#"{"wait_idle_secs":30,"require_idle":true,"reset_workers_prefix_cache":true}"#;
            let reset = admin.post("/admin/reset", end).await.json();
            assert_eq!(reset["previous"]["reasons"][0]["code"], "prefix_cache_emptied", "{reset}");
        }
    });
}

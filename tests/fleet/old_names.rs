//! Dashboards that were made for vllm-router find its series.

use forebay::admin::MetricsPrefix;
use forebay_policy::PolicyKind;
use forebay_sim::{Fault, Stage};
use forebay_tests::{Site, request, run, site, until};

async fn site_with(prefix: MetricsPrefix) -> Site {
    Site::start_with(site::workers(2), PolicyKind::CacheAware, |settings| {
        settings.metrics_prefix = prefix;
        settings.router.retry.enabled = false;
        settings.breaker.failure_threshold = 1;
    })
    .await
}

#[test]
fn series_have_the_old_names_with_their_types_labels_and_values() {
    run(async {
        let site = site_with(MetricsPrefix::VllmRouter).await;
        let long = format!(r#"{{"prompt":"{}","max_tokens":1}}"#, "word ".repeat(2000));
        site.choices(3, |_| long.clone()).await;
        let mut client = site.client().await;
        assert_eq!(client.post("/v1/completions", "{").await.status(), 400);
        assert_eq!(client.post("/v1/embeddings", r#"{"input":"a"}"#).await.status(), 200);
        let gates: Vec<_> = site.workers.iter().map(|worker| worker.hold(Stage::BeforeHead)).collect();
        let mut held = site.client().await;
        held.send(&request("POST", "/v1/completions", &[], long.as_bytes())).await;
        until("it is with a worker", || site.in_flight(0) + site.in_flight(1) == 1).await;
        let text = site.metrics().await;
        let value =
            |family: &str, labels: &[&str]| site::sum(&text, &format!("vllm_router_{family}"), labels);
        let completions = r#"route="/v1/completions""#;
        assert_eq!(value("requests_total", &[completions]), 3);
        assert_eq!(value("requests_total", &[]), 4, "{text}");
        assert_eq!(value("request_errors_total", &[completions, r#"error_type="refused""#]), 1);
        assert_eq!(value("request_duration_seconds_count", &[completions]), 4);
        assert_eq!(value("request_duration_seconds_bucket", &[completions, r#"le="+Inf""#]), 4);
        assert_eq!(value("generate_duration_seconds_count", &[]), 4);
        assert_eq!((value("embeddings_total", &[]), value("embeddings_duration_seconds_count", &[])), (1, 1));
        assert_eq!(value("processed_requests_total", &[]), 5);
        assert_eq!(value("policy_decisions_total", &[r#"policy="cache_aware""#]), 5);
        assert_eq!((value("cache_hits_total", &[]), value("cache_misses_total", &[])), (3, 2), "{text}");
        assert_eq!((value("active_workers", &[]), value("worker_health", &[])), (2, 2));
        assert_eq!((value("worker_load", &[]), value("running_requests", &[])), (1, 1));
        assert_eq!((value("max_load", &[]), value("min_load", &[])), (1, 0));
        for (family, kind) in [
            ("requests_total", "counter"),
            ("request_duration_seconds", "histogram"),
            ("worker_load", "gauge"),
            ("cb_state", "gauge"),
        ] {
            assert!(text.contains(&format!("# TYPE vllm_router_{family} {kind}\n")), "{family}");
        }
        let label = format!(r#"worker="{}""#, site.workers[0].url());
        assert_eq!(value("cb_state", &[&label]), 0);
        assert!(text.contains("forebay_requests_total{"), "forebay's own are there as well");
        drop(gates);
        assert_eq!(held.answer().await.unwrap().status(), 200);
        site.workers[0].fail_always(Fault::Status(502, "{}".to_owned()));
        site.workers[1].fail_always(Fault::Status(502, "{}".to_owned()));
        assert_eq!(client.post("/v1/completions", long).await.status(), 502);
        assert_eq!(site.metric("vllm_router_cb_state", &[]).await, 1, "one is open");
    });
}

#[test]
fn counts_over_all_workers_do_not_go_down_when_one_of_them_goes() {
    run(async {
        let site = site_with(MetricsPrefix::VllmRouter).await;
        let long = format!(r#"{{"prompt":"{}","max_tokens":1}}"#, "word ".repeat(2000));
        site.choices(4, |_| long.clone()).await;
        let counts = async || {
            let text = site.metrics().await;
            ["cache_hits_total", "cache_misses_total", "load_balancing_events_total"]
                .map(|family| site::sum(&text, &format!("vllm_router_{family}"), &[]))
        };
        assert_eq!(counts().await, [3, 1, 0]);
        for (i, worker) in site.workers.iter().enumerate() {
            let body = format!(r#"{{"url":"{}"}}"#, worker.url());
            let mut admin = site.admin().await;
            let answer = admin.ask("DELETE", &format!("/workers/{i}?force=true"), &[], b"").await;
            assert_eq!(answer.status(), 200, "{}", answer.text());
            assert_eq!(counts().await, [3, 1, 0]);
            let answer = admin.post("/workers", &body).await;
            assert_eq!(answer.status(), 201, "{}", answer.text());
            assert_eq!(counts().await, [3, 1, 0], "it begins anew");
        }
    });
}

#[test]
fn without_being_asked_for_they_are_not_there() {
    run(async {
        let site = site_with(MetricsPrefix::default()).await;
        site.choices(1, |_| r#"{"prompt":"a","max_tokens":1}"#.to_owned()).await;
        assert!(!site.metrics().await.contains("vllm_router_"));
    });
}

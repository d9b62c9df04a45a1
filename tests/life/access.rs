//! One line for each request, whatever became of it, and nothing in it that a client wrote.

use std::path::{Path, PathBuf};

use forebay_policy::PolicyKind;
use forebay_router::AccessFormat;
use forebay_sim::Fault;
use forebay_tests::client::find;
use forebay_tests::{Site, request, run, site};
use serde_json::Value;

fn file(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _absent = std::fs::remove_file(&path);
    path
}

/// The access log of a run of requests, as it is after the application's end.
async fn lines(format: AccessFormat, path: &Path) -> Vec<String> {
    let workers = site::workers(2);
    let Site { workers, app } = Site::start_with(workers, PolicyKind::CacheAware, |settings| {
        settings.access_log.format = Some(format);
        settings.access_log.file = Some(path.to_owned());
    })
    .await;
    let site = Site { workers, app };
    let mut client = site.client().await;
    let prompt = "secret ".repeat(100);
    let usage = r#""stream":true,"stream_options":{"include_usage":true}"#;
    let streamed = format!(r#"{{"prompt":"{prompt}","max_tokens":5,{usage}}}"#);
    let headers = [("x-request-id", "mine"), ("authorization", "Bearer secret-key")];
    client.ask("POST", "/v1/completions?key=secret-key", &headers, streamed.as_bytes()).await;
    client.post("/v1/completions", format!(r#"{{"prompt":"{prompt}","max_tokens":3}}"#)).await;
    client.post("/v1/completions", "{").await;
    client.get("/nowhere/secret").await;
    for worker in &site.workers {
        worker.fail_next(1, Fault::CloseMidHead);
    }
    client.post("/v1/completions", r#"{"prompt":"b","max_tokens":1}"#).await;
    site.workers.iter().for_each(|worker| worker.fail_next(1, Fault::CloseMidStream(1)));
    client.post("/v1/completions", r#"{"prompt":"c","max_tokens":9,"stream":true}"#).await;
    site.quiet().await;
    let Site { app, .. } = site;
    app.shutdown().await;
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn each_request_leaves_one_line_with_its_facts() {
    run(async {
        let lines = lines(AccessFormat::Json, &file("access.json")).await;
        let lines: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        let outcomes: Vec<_> = lines.iter().map(|line| line["outcome"].as_str().unwrap()).collect();
        assert_eq!(
            outcomes,
            ["completed", "completed", "refused", "refused", "reset_before_headers", "reset_mid_stream"]
        );
        let [streamed, whole, broken, nowhere, retried, cut] = lines.as_slice() else { panic!("{lines:?}") };
        assert_eq!((&streamed["id"], &streamed["route"]), (&"mine".into(), &"/v1/completions".into()));
        assert!(streamed["worker"].as_str().unwrap().starts_with("http://127.0.0.1:"));
        assert_eq!(
            (&streamed["status"], &streamed["attempts"], &streamed["epoch"]),
            (&200.into(), &1.into(), &1.into())
        );
        assert_eq!(streamed["completion_tokens"], 5);
        assert!(streamed["first_token_ms"].as_f64().unwrap() >= streamed["ttfb_ms"].as_f64().unwrap());
        assert!(streamed["duration_ms"].as_f64() >= streamed["ttfb_ms"].as_f64());
        assert!(
            streamed["response_bytes"].as_u64() > Some(100) && streamed["request_bytes"].as_u64() > Some(700)
        );
        assert_eq!((&whole["decision"], &whole["worker"]), (&"prefix_hit".into(), &streamed["worker"]));
        assert!(
            whole["matched_bytes"].as_u64() > Some(600)
                && whole["prompt_tokens"] == streamed["prompt_tokens"]
        );
        assert_eq!((&broken["status"], &broken["attempts"]), (&400.into(), &0.into()));
        assert!(nowhere["worker"].is_null() && nowhere["status"] == 404);
        assert_eq!((&retried["attempts"], &retried["status"]), (&2.into(), &502.into()));
        assert_eq!((&cut["status"], &cut["completion_tokens"]), (&200.into(), &Value::Null));
    });
}

#[test]
fn nothing_that_a_client_wrote_is_in_it() {
    run(async {
        for (format, name) in [(AccessFormat::Json, "secret.json"), (AccessFormat::Text, "secret.txt")] {
            let lines = lines(format, &file(name)).await;
            assert_eq!(lines.len(), 6);
            assert!(lines.iter().all(|line| !line.contains("secret")), "{lines:?}");
        }
    });
}

#[test]
fn a_client_that_leaves_leaves_a_line_too() {
    run(async {
        let path = file("gone.txt");
        let site = Site::start_with(site::workers(1), PolicyKind::RoundRobin, |settings| {
            settings.access_log.format = Some(AccessFormat::Text);
            settings.access_log.file = Some(path.clone());
        })
        .await;
        let gate = site.workers[0].hold(forebay_sim::Stage::BeforeHead);
        let mut client = site.client().await;
        client.send(&request("POST", "/v1/completions", &[], br#"{"prompt":"a"}"#)).await;
        gate.wait_held(1).await;
        client.reset();
        site.quiet().await;
        drop(gate);
        let Site { app, .. } = site;
        app.shutdown().await;
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 1);
        assert!(
            text.contains(
                " status=0 outcome=client_gone_before_headers route=/v1/completions model=tiny worker=http://"
            ),
            "{text}"
        );
        assert!(text.contains(" attempts=1 "));
    });
}

#[test]
fn what_a_stream_told_of_tokens_before_it_broke_off_is_in_its_line() {
    run(async {
        let path = file("tokens.json");
        let site = Site::start_with(site::workers(1), PolicyKind::CacheAware, |settings| {
            settings.access_log.format = Some(AccessFormat::Json);
            settings.access_log.file = Some(path.clone());
        })
        .await;
        let usage = r#""stream_options":{"include_usage":true,"continuous_usage_stats":true}"#;
        let body = format!(r#"{{"prompt":"one two three","max_tokens":9,"stream":true,{usage}}}"#);
        site.workers[0].fail_next(1, Fault::CloseMidStream(3));
        assert!(site.client().await.post("/v1/completions", &body).await.text().contains("worker_died"));
        site.quiet().await;
        let gate = site.workers[0].hold(forebay_sim::Stage::AfterChunks(3));
        let mut client = site.client().await;
        client.send(&request("POST", "/v1/completions", &[], body.as_bytes())).await;
        gate.wait_held(1).await;
        client.head().await.unwrap();
        while find(&client.chunk().await.unwrap().unwrap(), br#""completion_tokens":3"#).is_none() {}
        client.reset();
        site.quiet().await;
        drop(gate);
        site.app.shutdown().await;
        let lines = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let outcomes: Vec<_> = lines.iter().map(|line| line["outcome"].as_str().unwrap()).collect();
        assert_eq!(outcomes, ["reset_mid_stream", "client_gone_mid_stream"]);
        for line in lines {
            assert_eq!(line["completion_tokens"], 3, "{line}");
            assert!(line["prompt_tokens"].as_u64() > Some(0), "{line}");
        }
    });
}

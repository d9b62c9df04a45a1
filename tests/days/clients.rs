//! Clients that are slow, leave, or do not read.

use std::time::Duration;

use forebay_sim::{Stage, WorkerOptions};
use forebay_tests::{request, run, site};

use crate::day::{Day, STREAM, WHOLE, saw_of};

const SHORT: Duration = Duration::from_millis(200);

#[test]
fn they_send_byte_by_byte_and_stop() {
    run(async {
        let day = Day::of_one("slow-loris in the head", |settings| settings.client_header = SHORT).await;
        let bytes = request("POST", "/v1/completions", &[], WHOLE.as_bytes());
        let mut slow = Vec::new();
        for length in 1..40 {
            let mut client = day.site.client().await;
            client.send_in_pieces(&bytes[..length], 1).await;
            slow.push(client);
        }
        assert_eq!(day.ask(WHOLE).await, "200 whole", "others are served meanwhile");
        for client in &mut slow {
            assert_eq!(client.head().await.unwrap().status, 408);
        }
        day.ends("1 completed", "408; it is no request, and counted as none").await;

        let day = Day::of_one("slow-loris in the body", |settings| {
            settings.router.times.client_body = Some(SHORT);
        })
        .await;
        let mut client = day.site.client().await;
        let seen = saw_of(&mut client, &bytes[..bytes.len() - 3]).await;
        assert_eq!(seen, "408 router_body_timeout");
        day.ends("1 client_timeout", &seen).await;
    });
}

#[test]
fn they_leave() {
    run(async {
        let day = Day::of_one("client leaves before the head", |_| ()).await;
        let gate = day.site.workers[0].hold(Stage::BeforeHead);
        let mut client = day.site.client().await;
        client.send(&request("POST", "/v1/completions", &[], STREAM.as_bytes())).await;
        gate.wait_held(1).await;
        drop(client);
        day.site.workers[0].wait_until(|stats| stats.aborted == 1).await;
        day.ends("1 client_gone_before_headers", "(left)").await;

        let day = Day::of_one("client leaves inside a stream", |_| ()).await;
        let gate = day.site.workers[0].hold(Stage::AfterChunks(2));
        let mut client = day.site.client().await;
        client.send(&request("POST", "/v1/completions", &[], STREAM.as_bytes())).await;
        gate.wait_held(1).await;
        client.head().await.unwrap();
        client.reset();
        day.site.workers[0].wait_until(|stats| stats.aborted == 1).await;
        day.ends("1 client_gone_mid_stream", "(left)").await;

        let day = Day::of_one("client half-closes before the head: it has left, as for vLLM", |_| ()).await;
        let gate = day.site.workers[0].hold(Stage::BeforeHead);
        let mut client = day.site.client().await;
        client.send(&request("POST", "/v1/completions", &[], WHOLE.as_bytes())).await;
        gate.wait_held(1).await;
        client.half_close().await;
        day.site.workers[0].wait_until(|stats| stats.aborted == 1).await;
        assert_eq!(client.rest().await, b"");
        day.ends("1 client_gone_before_headers", "nothing, then the end").await;
    });
}

#[test]
fn they_never_read() {
    run(async {
        let options = WorkerOptions { max_model_len: 1 << 20, ..WorkerOptions::recording().named("w0") };
        let settings = |settings: &mut forebay::settings::Settings| settings.breaker.enabled = false;
        let mut day = Day::of_one("clients that never read", |_| ()).await;
        let workers = vec![site::worker(options)];
        day.site =
            forebay_tests::Site::start_with(workers, forebay_policy::PolicyKind::RoundRobin, settings).await;
        let body = r#"{"prompt":"x","max_tokens":100000,"stream":true}"#;
        let mut silent = Vec::new();
        for _ in 0..4 {
            let mut client = day.site.client().await;
            client.send(&request("POST", "/v1/completions", &[], body.as_bytes())).await;
            client.head().await.unwrap();
            silent.push(client);
        }
        assert_eq!(day.ask(WHOLE).await, "200 whole", "others are served meanwhile");
        assert_eq!(day.site.in_flight(0), 4, "the worker waits for them");
        drop(silent);
        day.ends("4 client_gone_mid_stream, 1 completed", "(does not look; the worker is held back)").await;
    });
}

//! Clients that flood, stall or come in odd forms of HTTP.

use forebay_policy::PolicyKind;
use forebay_tests::client::{find, request};
use forebay_tests::scripted::{Scripted, Then};
use forebay_tests::{Client, Site, run, site};

use crate::still_serves;

const BODY: &str = r#"{"prompt":"x","max_tokens":1}"#;

#[test]
fn floods_of_headers_are_refused_or_served_but_never_fatal() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let many = |count: usize| (0..count).map(|i| format!("x-h{i}: v\r\n")).collect::<String>();
        for (headers, expected) in [
            (many(60), Some(200)),
            (many(2_000), None),
            (many(20_000), None),
            (format!("x-huge: {}\r\n", "v".repeat(60_000)), Some(200)),
            (format!("x-huge: {}\r\n", "v".repeat(1_000_000)), None),
            (format!("{}: v\r\n", "x".repeat(300_000)), None),
            ("x-same: v\r\n".repeat(90), Some(200)),
        ] {
            let mut client = site.client().await;
            let length = BODY.len();
            let head = format!(
                "POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-length: {length}\r\ncontent-type: application/json\r\n"
            );
            client.send(format!("{head}{headers}\r\n{BODY}").as_bytes()).await;
            let status = client.head().await.map_or(431, |head| head.status);
            assert_eq!(status, expected.unwrap_or(431));
        }
        let mut client = site.client().await;
        let target = format!("/v1/completions?{}", "q".repeat(70_000));
        client.send(&request("POST", &target, &[], BODY.as_bytes())).await;
        assert!(client.head().await.map_or(414, |head| head.status) >= 400);
        still_serves(&site).await;
    });
}

#[test]
fn clients_that_stall_keep_nobody_else_waiting() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let whole = request("POST", "/v1/completions", &[], BODY.as_bytes());
        let mut stalled = Vec::new();
        for i in 0..200 {
            let mut client = site.client().await;
            client.send(&whole[..i % whole.len()]).await;
            stalled.push(client);
        }
        let mut client = site.client().await;
        for _ in 0..20 {
            assert_eq!(client.post("/v1/completions", BODY).await.status(), 200);
        }
        assert_eq!(site.workers[0].requests_to("/v1/completions").len(), 20);
        // One of them goes on, byte by byte, and is served.
        let mut slow = stalled.swap_remove(50);
        slow.send_in_pieces(&whole[50..], 1).await;
        assert_eq!(slow.answer().await.unwrap().status(), 200);
        drop(stalled);
        still_serves(&site).await;
    });
}

#[test]
fn requests_sent_ahead_are_answered_in_order() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let mut client = site.client().await;
        let mut bytes = Vec::new();
        for i in 0..20 {
            let id = format!("id-{i}");
            let path = if i % 3 == 0 { "/health" } else { "/v1/completions" };
            let (method, body) = if i % 3 == 0 { ("GET", "") } else { ("POST", BODY) };
            bytes.extend(request(method, path, &[("x-request-id", &id)], body.as_bytes()));
        }
        client.send(&bytes).await;
        for i in 0..20 {
            let answer = client.answer().await.unwrap();
            assert_eq!((answer.status(), answer.header("x-request-id")), (200, format!("id-{i}")));
        }
        still_serves(&site).await;
    });
}

#[test]
fn http_1_0_gets_an_answer_that_ends_with_the_connection() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let body = r#"{"prompt":"x","max_tokens":3,"stream":true}"#;
        let mut client = site.client().await;
        let head = format!(
            "POST /v1/completions HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        client.send(format!("{head}{body}").as_bytes()).await;
        let all = client.rest().await;
        let end = find(&all, b"\r\n\r\n").unwrap();
        let (head, stream) = (String::from_utf8_lossy(&all[..end]).to_ascii_lowercase(), &all[end + 4..]);
        assert!(head.starts_with("http/1.0 200") || head.starts_with("http/1.1 200"), "{head}");
        assert!(!head.contains("chunked"), "{head}");
        assert!(stream.starts_with(b"data: ") && stream.ends_with(b"data: [DONE]\n\n"));
        still_serves(&site).await;
    });
}

#[test]
fn what_breaks_off_does_not_look_whole_to_a_client_that_reads_until_the_end() {
    run(async {
        let answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nshort\r\n";
        for (then, whole) in [(Then::Close, false), (Then::Keep, true)] {
            let end = if whole { "0\r\n\r\n" } else { "" };
            let worker = Scripted::start(format!("{answer}{end}"), then).await;
            let app = site::start(&site::settings(PolicyKind::RoundRobin, &[worker.url()])).await;
            let mut client = Client::connect(&app.url()).await;
            client
                .send(b"POST /v1/completions HTTP/1.0\r\ncontent-length: 14\r\n\r\n{\"prompt\":\"x\"}")
                .await;
            let read = client.answer().await;
            assert_eq!(read.is_ok_and(|answer| answer.body == b"short"), whole);
        }
    });
}

#[test]
fn a_target_in_absolute_form_goes_to_the_workers_all_the_same() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let mut client = site.client().await;
        let answer =
            client.ask("POST", "http://elsewhere.example:99/v1/completions?a=b", &[], BODY.as_bytes()).await;
        assert_eq!(answer.status(), 200);
        let recorded = site.workers[0].requests_to("/v1/completions").pop().unwrap();
        assert_eq!(recorded.target, "/v1/completions?a=b");
        assert_eq!(recorded.header("host").map(str::to_owned), Some(site.workers[0].addr().to_string()));
        for (method, target) in
            [("OPTIONS", "*"), ("CONNECT", "evil.example:443"), ("GET", "//evil.example/v1/models")]
        {
            let mut client = site.client().await;
            client.send(format!("{method} {target} HTTP/1.1\r\nhost: h\r\n\r\n").as_bytes()).await;
            let status = client.head().await.unwrap().status;
            assert!((400..500).contains(&status), "{method} {target}: {status}");
        }
        still_serves(&site).await;
    });
}

#[test]
fn paths_that_only_resemble_a_known_one_are_not_taken_for_it() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let mut client = site.client().await;
        for path in [
            "/admin/../v1/../admin/reset",
            "/%61dmin/reset",
            "/ADMIN/reset",
            "//admin/reset",
            "/v1/../admin/reset",
        ] {
            client.post(path, "").await;
            assert_eq!(site.epoch(), 1, "{path}");
        }
        let _forwarded = site.workers[0].take_requests();
        let foreign = [("host", "evil.example")];
        for path in ["/reset_prefix_cache/", "/Reset_Prefix_Cache", "/reset_prefix_cache%20", "/./sleep"] {
            let answer = client.ask("POST", path, &foreign, b"").await;
            assert!((400..500).contains(&answer.status()), "{path}");
            assert!(site.workers[0].requests().iter().all(|request| request.method == "GET"), "{path}");
        }
        still_serves(&site).await;
    });
}

#[test]
fn an_upgrade_is_not_passed_on() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let mut client = site.client().await;
        let headers =
            [("connection", "upgrade, http2-settings"), ("upgrade", "h2c"), ("http2-settings", "AAMAAABk")];
        assert_eq!(client.ask("POST", "/v1/completions", &headers, BODY.as_bytes()).await.status(), 200);
        let recorded = site.workers[0].requests_to("/v1/completions").pop().unwrap();
        assert_eq!((recorded.header("upgrade"), recorded.header("http2-settings")), (None, None));
        let answer = client
            .ask("GET", "/v1/realtime", &[("connection", "upgrade"), ("upgrade", "websocket")], b"")
            .await;
        assert_ne!(answer.status(), 101);
        still_serves(&site).await;
    });
}

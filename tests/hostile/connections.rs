//! A client's connection: what follows what on it, and when it ends.

use forebay_policy::PolicyKind;
use forebay_tests::client::{chunked, request};
use forebay_tests::{Site, run};

use crate::still_serves;

const BODY: &str = r#"{"prompt":"x","max_tokens":1}"#;

/// Sends a head only, and gives what comes back, up to the end of the connection.
async fn told(site: &Site, head: &str) -> String {
    let mut client = site.client().await;
    client.send(head.as_bytes()).await;
    String::from_utf8_lossy(&client.rest().await).into_owned()
}

#[test]
fn a_client_that_waits_to_be_asked_for_its_body_is_asked_once() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let expecting = [("expect", "100-continue")];
        let bytes = request("POST", "/v1/completions", &expecting, BODY.as_bytes());
        let head = bytes.len() - BODY.len();
        let mut client = site.client().await;
        for _ in 0..2 {
            client.send(&bytes[..head]).await;
            assert_eq!(client.head().await.unwrap().status, 100);
            client.send(BODY.as_bytes()).await;
            assert_eq!(client.answer().await.unwrap().status(), 200);
        }
        // One that does not wait is not asked.
        client.send(&bytes).await;
        assert_eq!(client.answer().await.unwrap().status(), 200);
        let recorded = site.workers[0].requests_to("/v1/completions");
        assert!(recorded.len() == 3 && recorded.iter().all(|request| request.header("expect").is_none()));
    });
}

#[test]
fn a_body_that_nobody_wants_is_not_asked_for_and_ends_the_connection() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let head = "POST /nothing HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n";
        let answer = told(&site, head).await.to_ascii_lowercase();
        assert!(
            answer.starts_with("http/1.1 404 ") && answer.contains("\r\nconnection: close\r\n"),
            "{answer}"
        );
        // One that has come is stepped over.
        let mut client = site.client().await;
        for bytes in
            [request("POST", "/nothing", &[], &[b'x'; 100_000]), chunked("/nothing", &[], &[b'x'; 1000], 300)]
        {
            client.send(&bytes).await;
            let answer = client.answer().await.unwrap();
            assert_eq!(answer.status(), 404);
            if answer.header("connection") == "close" {
                client = site.client().await;
            }
        }
        still_serves(&site).await;
    });
}

#[test]
fn requests_of_all_framings_follow_each_other_on_one_connection() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let long = format!(r#"{{"prompt":"{}","max_tokens":1}}"#, "x".repeat(300_000));
        let mut bytes = Vec::new();
        for body in [BODY, &long, BODY] {
            bytes.extend(chunked("/v1/completions", &[], body.as_bytes(), 7001));
            bytes.extend(b"\r\n");
            bytes.extend(request("POST", "/v1/completions", &[], body.as_bytes()));
            bytes.extend(request("GET", "/v1/models", &[], b""));
        }
        let mut client = site.client().await;
        for piece in bytes.chunks(bytes.len() / 50) {
            client.send(piece).await;
        }
        for _ in 0..9 {
            assert_eq!(client.answer().await.unwrap().status(), 200);
        }
        assert_eq!(client.get("/health").await.status(), 200);
        let lengths: Vec<usize> =
            site.workers[0].requests_to("/v1/completions").iter().map(|request| request.body.len()).collect();
        let (short, long) = (BODY.len(), long.len());
        assert_eq!(lengths, [short, short, long, long, short, short]);
    });
}

#[test]
fn what_is_no_request_gets_a_clear_answer_and_the_end() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        for (sent, status) in [
            ("hello\r\n\r\n".to_owned(), 400),
            ("GET / HTTP/3.0\r\n\r\n".to_owned(), 400),
            ("PRI * HTTP/2.0\r\n\r\nSN\r\n\r\n".to_owned(), 400),
            ("\x16\x03\x01\x02\x00\x01\x00".to_owned(), 400),
            (
                "POST /v1/new HTTP/1.1\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n".to_owned(),
                400,
            ),
            (format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(101)), 431),
            (format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(70_000)), 414),
        ] {
            let answer = told(&site, &sent).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{sent:.40}: {answer}");
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            assert!(
                head.contains("connection: close")
                    && head.contains(&format!("content-length: {}", body.len()))
            );
            let error: serde_json::Value = serde_json::from_str(body).unwrap();
            assert_eq!(error["error"]["code"], status);
        }
        still_serves(&site).await;
    });
}

#[test]
fn a_client_that_asks_for_the_end_gets_it_and_one_that_asks_for_a_head_gets_no_body() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let closing = "GET /health HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n";
        let answer = told(&site, &format!("{closing}{closing}")).await;
        assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 1, "{answer}");
        assert!(answer.contains("\r\nconnection: close\r\n"));
        let head = "HEAD /health HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n";
        let answer = told(&site, head).await;
        assert!(answer.starts_with("HTTP/1.1 ") && answer.ends_with("\r\n\r\n"), "{answer}");
        assert_eq!(answer.matches("\r\n\r\n").count(), 1, "{answer}");
        let mut client = site.client().await;
        client.send(b"\r\n\r\nGET /health HTTP/1.0\r\nconnection: keep-alive\r\n\r\n").await;
        assert_eq!(client.answer().await.unwrap().header("connection"), "keep-alive");
        assert_eq!(client.get("/health").await.status(), 200);
    });
}

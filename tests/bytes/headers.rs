//! Targets and headers: what is the client's passes with every byte, what is the connection's stays.

use forebay_policy::PolicyKind;
use forebay_sim::Recorded;
use forebay_tests::client::request;
use forebay_tests::{Site, run};

/// The headers a worker got, names and values, in order.
fn headers(recorded: &Recorded) -> Vec<(String, Vec<u8>)> {
    let lines = recorded.head.split(|b| *b == b'\n').skip(1);
    let lines = lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line)).filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let colon = line.iter().position(|b| *b == b':').unwrap();
            (
                String::from_utf8_lossy(&line[..colon]).to_ascii_lowercase(),
                line[colon + 1..].trim_ascii().to_vec(),
            )
        })
        .collect()
}

fn named(recorded: &Recorded, name: &str) -> Vec<Vec<u8>> {
    headers(recorded).into_iter().filter(|(known, _)| known == name).map(|(_, value)| value).collect()
}

#[test]
fn targets_values_and_the_order_of_duplicates_are_kept() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let mut client = site.client().await;
        let target = "/v1/completions?beta=true&x=%2F%20&y=a+b&empty=&=&flag&u=%C3%A9";
        let mut bytes = format!("POST {target} HTTP/1.1\r\nHost: public.example\r\n").into_bytes();
        bytes.extend_from_slice(b"X-Dup: one\r\nAccept: a\r\nX-Dup: two, three\r\nx-dup: \"four\"\r\n");
        bytes.extend_from_slice(
            b"Authorization: Bearer  client key\r\nX-Latin: caf\xe9\r\nX-Utf: caf\xc3\xa9\r\n",
        );
        bytes.extend_from_slice(b"X-Empty:\r\nCookie: a=1; b=2\r\ntraceparent: 00-abc-def-01\r\n");
        bytes.extend_from_slice(b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}");
        client.send(&bytes).await;
        client.answer().await.unwrap();
        let recorded = site.workers[0].requests_to("/v1/completions").pop().unwrap();
        assert_eq!(recorded.target, target);
        assert_eq!(named(&recorded, "x-dup"), [&b"one"[..], b"two, three", b"\"four\""]);
        assert_eq!(named(&recorded, "authorization"), [b"Bearer  client key"]);
        assert_eq!(named(&recorded, "x-latin"), [b"caf\xe9"]);
        assert_eq!(named(&recorded, "x-utf"), [b"caf\xc3\xa9"]);
        assert_eq!(named(&recorded, "x-empty"), [b""]);
        assert_eq!(named(&recorded, "cookie"), [b"a=1; b=2"]);
        assert_eq!(named(&recorded, "traceparent"), [b"00-abc-def-01"]);
        assert_eq!(named(&recorded, "host"), [site.workers[0].addr().to_string().into_bytes()]);
        assert_eq!(named(&recorded, "content-length"), [b"2"]);
    });
}

#[test]
fn what_belongs_to_the_clients_connection_does_not_pass() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let mut client = site.client().await;
        let hop = [
            ("connection", "keep-alive, X-Named"),
            ("x-named", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("trailer", "x-later"),
            ("proxy-authorization", "Basic eDp5"),
            ("proxy-connection", "keep-alive"),
            ("x-stays", "1"),
        ];
        client.ask("POST", "/v1/completions", &hop, br#"{"prompt":"x"}"#).await;
        let recorded = site.workers[0].requests_to("/v1/completions").pop().unwrap();
        let names: Vec<_> = headers(&recorded).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["host", "x-stays", "content-type", "x-request-id", "content-length"]);
    });
}

#[test]
fn a_request_id_is_kept_or_taken_from_another_header_or_made() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let mut client = site.client().await;
        let mut ids = Vec::new();
        for given in [&[][..], &[], &[("x-request-id", "mine")], &[("x-correlation-id", "other")]] {
            let answer = client.ask("POST", "/v1/completions", given, br#"{"prompt":"x"}"#).await;
            let recorded = site.workers[0].requests_to("/v1/completions").pop().unwrap();
            assert_eq!(named(&recorded, "x-request-id"), [answer.header("x-request-id").into_bytes()]);
            ids.push(answer.header("x-request-id"));
        }
        assert!(ids[0] != ids[1] && ids[..2].iter().all(|id| id.len() == 32), "{ids:?}");
        assert_eq!(ids[2..], ["mine", "other"]);
        let own = client.ask("GET", "/health", &[("x-request-id", "own")], b"").await;
        assert_eq!(own.header("x-request-id"), "own");
    });
}

#[test]
fn methods_pass_on_paths_that_any_worker_takes() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let mut client = site.client().await;
        for method in ["GET", "DELETE", "PUT", "PATCH", "OPTIONS", "HEAD"] {
            client.send(&request(method, "/v1/new?q=1", &[], b"")).await;
            client.answer_to(method).await.unwrap();
            let recorded = site.workers[0].requests_to("/v1/new").pop().unwrap();
            assert_eq!((recorded.method.as_str(), recorded.target.as_str()), (method, "/v1/new?q=1"));
            assert!(recorded.body.is_empty() && named(&recorded, "content-length").is_empty(), "{method}");
        }
    });
}

//! Requests whose end two readers could see at different places: no worker ever sees one that the router did not.

use forebay_policy::PolicyKind;
use forebay_tests::{Site, run};

use crate::still_serves;

/// What a smuggler hides behind the body.
const HIDDEN: &str = "POST /smuggled HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\n\r\n";

/// Headers and a body, in which the hidden request begins at one of the possible ends.
fn attacks() -> Vec<String> {
    let chunks = format!("0\r\n\r\n{HIDDEN}");
    let both =
        |length: usize| format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}");
    vec![
        both(5),
        both(chunks.len()),
        format!("Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n{chunks}"),
        format!("Content-Length: 2\r\nContent-Length: 40\r\n\r\n{{}}{HIDDEN}"),
        format!("Content-Length: 2, 40\r\n\r\n{{}}{HIDDEN}"),
        format!("Content-Length: +2\r\n\r\n{{}}{HIDDEN}"),
        format!("Content-Length: 0x2\r\n\r\n{{}}{HIDDEN}"),
        format!("Content-Length: -1\r\n\r\n{{}}{HIDDEN}"),
        format!("Content-Length : 2\r\n\r\n{{}}{HIDDEN}"),
        format!("Content-Length: 2\r\nX-Folded: a\r\n b\r\n\r\n{{}}{HIDDEN}"),
        format!("Content-Length: 2\r\n Transfer-Encoding: chunked\r\n\r\n{{}}{HIDDEN}"),
        format!("Transfer-Encoding: xchunked\r\n\r\n{chunks}"),
        format!("Transfer-Encoding: chunked, identity\r\n\r\n{chunks}"),
        format!("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n{chunks}"),
        format!("Transfer-Encoding : chunked\r\n\r\n{chunks}"),
        format!("Transfer-Encoding:\x0bchunked\r\n\r\n{chunks}"),
        format!("Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0;\r\n\r\n{HIDDEN}"),
        format!("Transfer-Encoding: chunked\r\n\r\n-1\r\n{{}}{HIDDEN}"),
        format!("Transfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n{{}}{HIDDEN}"),
        format!("Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}XX0\r\n\r\n{HIDDEN}"),
        format!("Transfer-Encoding: chunked\r\n\r\n2\n{{}}\n0\n\n{HIDDEN}"),
        format!("X-Null: a\0b\r\nContent-Length: 2\r\n\r\n{{}}{HIDDEN}"),
        format!("X-Bare: a\rContent-Length: 60\r\nContent-Length: 2\r\n\r\n{{}}{HIDDEN}"),
    ]
}

#[test]
fn requests_with_two_possible_ends_reach_no_worker_as_two() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        for attack in attacks() {
            // The router may well read a second request; it must be the one that answers it, with its own 404.
            let mut client = site.client().await;
            client.send(format!("POST /v1/new HTTP/1.1\r\nHost: h\r\n{attack}").as_bytes()).await;
            client.send(b"GET /last HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await;
            let answers = String::from_utf8_lossy(&client.rest().await).into_owned();
            assert!(answers.is_empty() || answers.starts_with("HTTP/1.1 "), "{attack:?}: {answers}");
            let seen = site.workers[0].take_requests();
            for request in seen {
                let probe = request.method == "GET" && request.body.is_empty();
                assert!(probe || request.path() == "/v1/new", "{attack:?} got {request:?} to a worker");
                let body = request.text();
                assert!(
                    !body.contains("smuggled") || request.header("content-length").is_some(),
                    "{attack:?}"
                );
                assert!(request.complete && !request.chunked, "{attack:?}: {body}");
            }
        }
        still_serves(&site).await;
    });
}

#[test]
fn lengths_that_contradict_each_other_are_refused() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        for head in [
            "Content-Length: 2\r\nContent-Length: 3",
            "Content-Length: +2",
            "Content-Length: 2 2",
            "Content-Length: -1",
            "Transfer-Encoding: gzip",
            "Content-Length : 2",
            "X: a\r\n folded: b\r\nContent-Length: 2",
        ] {
            let mut client = site.client().await;
            client.send(format!("POST /v1/new HTTP/1.1\r\nHost: h\r\n{head}\r\n\r\n{{}}").as_bytes()).await;
            let status = client.head().await.map_or(400, |head| head.status);
            assert_eq!(status, 400, "{head}");
        }
        assert!(site.workers[0].requests_to("/v1/new").is_empty());
        still_serves(&site).await;
    });
}

#[test]
fn line_ends_in_header_values_cannot_be_written_to_a_worker() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        for bad in ["a\rb", "a\nX-Injected: 1", "a\0b", "a\r\r\nX-Injected: 1"] {
            let mut client = site.client().await;
            let head = format!(
                "POST /v1/new HTTP/1.1\r\nHost: h\r\nX-Value: {bad}\r\nContent-Length: 2\r\n\r\n{{}}"
            );
            client.send(head.as_bytes()).await;
            client.send(b"GET /last HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await;
            let _answers = client.rest().await;
            for request in site.workers[0].take_requests() {
                let head = String::from_utf8_lossy(&request.head).into_owned();
                let lines_end_right = head.matches('\n').count() == head.matches("\r\n").count();
                assert!(
                    lines_end_right && head.matches('\r').count() == head.matches('\n').count(),
                    "{head:?}"
                );
            }
        }
        for target in ["/v1/a b", "/v1/a\tb", "/v1/\u{1}", "/v1/#x"] {
            let mut client = site.client().await;
            client
                .send(format!("GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").as_bytes())
                .await;
            let _answer = client.rest().await;
            for request in site.workers[0].take_requests() {
                assert!(
                    request.target.bytes().all(|b| b > b' ' && b != b'#' && b != 0x7f),
                    "{}",
                    request.target
                );
            }
        }
        still_serves(&site).await;
    });
}

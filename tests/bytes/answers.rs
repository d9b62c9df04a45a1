//! Answers arrive as the worker wrote them, and as soon as it did.

use forebay_policy::PolicyKind;
use forebay_sim::{Fault, Stage};
use forebay_tests::scripted::{Scripted, Then};
use forebay_tests::{Answer, Client, Site, run, site};

/// Equal requests get equal answers: the id is given.
const STREAM: &str = r#"{"prompt":"a b c","max_tokens":6,"stream":true,"request_id":"r1","stream_options":{"include_usage":true}}"#;
const WHOLE: &str = r#"{"prompt":"a b c","max_tokens":6,"request_id":"r1"}"#;

/// The headers that are the worker's: without those of the connection, and the request's id.
fn headers(answer: &Answer) -> Vec<(String, Vec<u8>)> {
    // A stream that came in one piece may be told by its length instead of in chunks.
    let ours = ["connection", "keep-alive", "transfer-encoding", "content-length", "x-request-id"];
    let mut headers = answer.head.headers.clone();
    headers.retain(|(name, _)| !ours.contains(&name.as_str()));
    headers.sort();
    headers
}

#[test]
fn every_status_and_body_is_the_workers() {
    run(async {
        let once = |settings: &mut forebay::settings::Settings| settings.router.retry.enabled = false;
        let site = Site::start_with(site::workers(1), PolicyKind::RoundRobin, once).await;
        let mut client = site.client().await;
        let mut direct = Client::connect(&site.workers[0].url()).await;
        for status in
            [200, 201, 202, 203, 206, 300, 301, 302, 307, 400, 401, 403, 404, 405, 408, 409, 413, 418]
                .into_iter()
                .chain([422, 425, 429, 431, 451, 499, 500, 501, 502, 503, 504, 507, 529, 599])
        {
            let body = format!("{{\"status\": {status}, \"n\":0.70000000000000001}}\n");
            site.workers[0].fail_next(2, Fault::Status(status, body.clone()));
            let expected = direct.post("/v1/completions", WHOLE).await;
            let got = client.post("/v1/completions", WHOLE).await;
            assert_eq!((got.status(), got.text()), (status, body));
            assert_eq!(headers(&got), headers(&expected), "{status}");
        }
    });
}

#[test]
fn answers_of_all_kinds_equal_those_that_the_worker_gives_directly() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let mut client = site.client().await;
        let mut direct = Client::connect(&site.workers[0].url()).await;
        for (path, body) in [
            ("/v1/completions", WHOLE),
            ("/v1/completions", STREAM),
            ("/v1/embeddings", r#"{"input":"x"}"#),
            ("/tokenize", r#"{"prompt":"x"}"#),
            ("/v1/completions", r#"{"prompt":"x","max_tokens":-1}"#),
            ("/v1/new", "{}"),
        ] {
            let id = ("x-request-id", "r1");
            let expected = direct.ask("POST", path, &[id], body.as_bytes()).await;
            for fault in ["none", "byte-by-byte", "interim=103", "connection-close"] {
                let headers = [id, ("x-sim-fault", fault)];
                let got = client.ask("POST", path, &headers, body.as_bytes()).await;
                assert_eq!(without_ids(&got), without_ids(&expected), "{path} {fault}");
            }
        }
    });
}

/// Status, headers and body with what a worker draws for each answer masked.
fn without_ids(answer: &Answer) -> (u16, Vec<(String, Vec<u8>)>, String) {
    let mut text = answer.text();
    for mark in ["embd-", "cmpl-"] {
        while let Some(at) = text.find(mark) {
            let end = text[at..].find('"').map_or(text.len(), |end| at + end);
            text.replace_range(at..end, "ID");
        }
    }
    (answer.status(), headers(answer), text)
}

#[test]
fn a_stream_is_passed_on_as_it_comes() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let mut direct = Client::connect(&site.workers[0].url()).await;
        let id = [("x-request-id", "r1")];
        let whole = direct.ask("POST", "/v1/completions", &id, STREAM.as_bytes()).await.body;
        let ends: Vec<usize> =
            (0..whole.len()).filter(|&at| whole[..at].ends_with(b"\n\n")).chain([whole.len()]).collect();
        assert!(ends.len() > 6);
        let mut client = site.client().await;
        for k in 1..=ends.len() {
            let gate = site.workers[0].hold(Stage::AfterChunks(k));
            client.send(&forebay_tests::request("POST", "/v1/completions", &id, STREAM.as_bytes())).await;
            gate.wait_held(1).await;
            assert_eq!(client.head().await.unwrap().text("transfer-encoding").as_deref(), Some("chunked"));
            let first = client.chunks(ends[k - 1]).await;
            assert_eq!(first, whole[..ends[k - 1]], "the first {k} records and nothing else");
            assert!(!client.has_more());
            assert_eq!(site.in_flight(0), 1);
            gate.release();
            let mut rest = Vec::new();
            while let Some(chunk) = client.chunk().await.unwrap() {
                rest.extend(chunk);
            }
            assert_eq!(rest, whole[ends[k - 1]..]);
        }
        site.quiet().await;
    });
}

#[test]
fn an_answer_without_length_or_chunks_ends_with_its_connection() {
    let wire = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\nuntil the end";
    let got = scripted(wire, Then::Close);
    assert_eq!((got.status(), got.text().as_str()), (200, "until the end"));
}

#[test]
fn duplicate_headers_and_odd_values_of_a_worker_arrive_in_order() {
    let wire = "HTTP/1.1 200 Fine\r\nSet-Cookie: a=1\r\nX-Empty:\r\nSet-Cookie: b=2\r\nConnection: X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nSet-Cookie: a=3\r\nContent-Length: 2\r\n\r\nok";
    let got = scripted(wire, Then::Keep);
    assert_eq!(got.head.all("set-cookie"), ["a=1", "b=2", "a=3"]);
    assert_eq!(got.head.all("x-empty"), [""]);
    assert_eq!((got.head.text("x-hop"), got.head.text("keep-alive")), (None, None));
    assert_eq!(got.text(), "ok");
}

#[test]
fn chunk_extensions_and_trailers_of_a_worker_do_not_get_into_the_body() {
    let wire = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;ext=\"1\"\r\nabc\r\n0004\r\ndefg\r\n0\r\nX-Trailer: 1\r\n\r\n";
    let got = scripted(wire, Then::Keep);
    assert_eq!((got.text().as_str(), got.head.text("x-trailer")), ("abcdefg", None));
}

fn scripted(wire: &str, then: Then) -> Answer {
    run(async {
        let worker = Scripted::start(wire, then).await;
        let app = site::start(&site::settings(PolicyKind::RoundRobin, &[worker.url()])).await;
        Client::connect(&app.url()).await.post("/v1/completions", WHOLE).await
    })
}

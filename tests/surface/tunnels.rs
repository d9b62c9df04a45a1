//! Connections that switch to another protocol: bytes both ways, load until either side closes.

use std::time::Duration;

use forebay::settings::Settings;
use forebay_policy::PolicyKind;
use forebay_tests::raw::{Raw, Taken};
use forebay_tests::site::{settings, start};
use forebay_tests::{Client, Site, run, until};

const ASK: &str = "GET /v1/realtime?model=m HTTP/1.1\r\nhost: h\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\nsec-websocket-key: k\r\nx-mine: 1\r\n\r\n";
const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: a\r\n\r\n";

async fn behind(raw: &Raw, change: impl FnOnce(&mut Settings)) -> Site {
    let mut settings = settings(PolicyKind::RoundRobin, &[raw.url()]);
    change(&mut settings);
    Site { app: start(&settings).await, workers: Vec::new() }
}

/// A tunnel, from both its ends.
async fn open(site: &Site, raw: &mut Raw) -> (Client, Taken) {
    let mut client = site.client().await;
    client.send(ASK.as_bytes()).await;
    let mut taken = raw.next().await;
    taken.send(SWITCH).await;
    assert_eq!(client.head().await.unwrap().status, 101);
    (client, taken)
}

#[test]
fn what_each_side_says_reaches_the_other_and_the_load_lasts_until_the_worker_closes() {
    run(async {
        let mut raw = Raw::start().await;
        let site = behind(&raw, |_| ()).await;
        let mut client = site.client().await;
        // What is said before the switch is not lost.
        client.send(format!("{ASK}early").as_bytes()).await;
        let mut taken = raw.next().await;
        assert!(taken.head.starts_with("GET /v1/realtime?model=m HTTP/1.1\r\n"), "{}", taken.head);
        for (name, value) in
            [("connection", "Upgrade"), ("upgrade", "websocket"), ("sec-websocket-key", "k"), ("x-mine", "1")]
        {
            assert_eq!(taken.header(name), value);
        }
        assert_eq!(taken.head.matches("onnection:").count(), 1);
        taken.send(format!("{SWITCH}hello")).await;
        let head = client.head().await.unwrap();
        assert_eq!((head.status, head.text("upgrade").as_deref()), (101, Some("websocket")));
        assert_eq!(head.text("connection").as_deref(), Some("Upgrade"));
        assert_eq!(head.text("sec-websocket-accept").as_deref(), Some("a"));
        assert_eq!(taken.read(5).await, b"early");
        for round in 0..20 {
            client.send(b"ping!").await;
            taken.read(10 + 5 * round).await;
            taken.send("pong!").await;
        }
        assert_eq!(site.in_flight(0), 1);
        drop(taken);
        assert_eq!(client.rest().await, format!("hello{}", "pong!".repeat(20)).as_bytes());
        until("no load", || site.in_flight(0) == 0).await;
        let ended = ["route=\"/v1/realtime\"", "outcome=\"completed\""];
        assert_eq!(site.metric("forebay_requests_total", &ended).await, 1);
    });
}

#[test]
fn when_the_client_closes_the_worker_gets_what_was_said_and_the_end() {
    run(async {
        let mut raw = Raw::start().await;
        let site = behind(&raw, |_| ()).await;
        let (mut client, mut taken) = open(&site, &mut raw).await;
        client.send(&vec![b'x'; 1_000_000]).await;
        drop(client);
        assert_eq!(taken.rest().await.len(), 1_000_000);
        until("no load", || site.in_flight(0) == 0).await;
    });
}

#[test]
fn a_side_that_does_not_read_does_not_silence_the_other() {
    run(async {
        let mut raw = Raw::start().await;
        let site = behind(&raw, |_| ()).await;
        let (mut client, taken) = open(&site, &mut raw).await;
        let Taken { stream, .. } = taken;
        let (mut read, mut write) = stream.into_split();
        let flood = async {
            use tokio::io::AsyncWriteExt;
            loop {
                if write.write_all(&[b'y'; 65_536]).await.is_err() {
                    return;
                }
            }
        };
        let heard = async {
            use tokio::io::AsyncReadExt;
            let (mut total, mut piece) = (0, vec![0; 65_536]);
            while total < 20_000_000 {
                total += read.read(&mut piece).await.unwrap();
            }
        };
        let said = async {
            for _ in 0..20 {
                client.send(&vec![b'x'; 1_000_000]).await;
            }
        };
        tokio::select! {
            () = flood => panic!("the worker could not go on"),
            ((), ()) = async { tokio::join!(heard, said) } => {}
        }
        drop(client);
        until("no load", || site.in_flight(0) == 0).await;
    });
}

#[test]
fn a_worker_that_refuses_the_switch_is_heard_and_the_connection_goes_on() {
    run(async {
        let mut raw = Raw::start().await;
        let site = behind(&raw, |_| ()).await;
        let mut client = site.client().await;
        for _ in 0..2 {
            client.send(ASK.as_bytes()).await;
            raw.next().await.send("HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno").await;
            let answer = client.answer().await.unwrap();
            assert_eq!((answer.status(), answer.text().as_str()), (403, "no"));
        }
        until("no load", || site.in_flight(0) == 0).await;
    });
}

#[test]
fn nothing_switches_behind_a_body() {
    run(async {
        let mut raw = Raw::start().await;
        let site = behind(&raw, |_| ()).await;
        let mut client = site.client().await;
        for (framing, body) in
            [("content-length: 5", "hello"), ("transfer-encoding: chunked", "5\r\nhello\r\n0\r\n\r\n")]
        {
            client.send(ASK.replace("\r\n\r\n", &format!("\r\n{framing}\r\n\r\n{body}")).as_bytes()).await;
            let mut taken = raw.next().await;
            assert_eq!(taken.read(5).await, b"hello");
            assert_eq!(
                (taken.header("upgrade"), taken.header("content-length")),
                (String::new(), "5".into())
            );
            taken.send("HTTP/1.1 426 Upgrade Required\r\ncontent-length: 2\r\n\r\nno").await;
            assert_eq!(client.answer().await.unwrap().status(), 426);
        }
        until("no load", || site.in_flight(0) == 0).await;
    });
}

#[test]
fn any_path_that_is_passed_on_may_switch_but_nobody_switches_a_prompt_or_to_http_2() {
    run(async {
        let mut raw = Raw::start().await;
        let site = behind(&raw, |_| ()).await;
        let mut client = site.client().await;
        client.send(ASK.replace("/v1/realtime?model=m", "/v1/newer").as_bytes()).await;
        let mut taken = raw.next().await;
        assert_eq!(taken.header("upgrade"), "websocket");
        taken.send(SWITCH).await;
        assert_eq!(client.head().await.unwrap().status, 101);

        let body = r#"{"prompt":"x"}"#;
        for protocol in ["h2c", "websocket"] {
            let ask = format!(
                "POST /v1/completions HTTP/1.1\r\nhost: h\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: {protocol}\r\nhttp2-settings: AAMAAABkAAQAAP__\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            let mut client = site.client().await;
            client.send(ask.as_bytes()).await;
            let mut taken = raw.next().await;
            assert!(taken.header("upgrade").is_empty() && taken.header("http2-settings").is_empty());
            taken.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
            assert_eq!(client.answer().await.unwrap().status(), 200);
        }
        // An answer that nobody asked for is none.
        let mut client = site.client().await;
        client.send(b"GET /v1/newer HTTP/1.1\r\nhost: h\r\n\r\n").await;
        raw.next().await.send(SWITCH).await;
        assert_eq!(client.answer().await.unwrap().header("x-forebay-failure"), "worker_invalid_response");
    });
}

#[test]
fn a_tunnel_in_which_nothing_is_said_for_too_long_is_closed() {
    run(async {
        let mut raw = Raw::start().await;
        let idle = Some(Duration::from_millis(50));
        let site = behind(&raw, |settings| settings.router.times.stream_idle = idle).await;
        let (client, mut taken) = open(&site, &mut raw).await;
        assert!(client.rest().await.is_empty() && taken.rest().await.is_empty());
        until("no load", || site.in_flight(0) == 0).await;
        let ended = ["route=\"/v1/realtime\"", "outcome=\"stalled\""];
        assert_eq!(site.metric("forebay_requests_total", &ended).await, 1);
    });
}

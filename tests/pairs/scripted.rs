//! LMCache with workers whose answers are written here: what simulated ones do not say.

use std::time::Duration;

use forebay_pd::Connector;
use forebay_router::PairSettings;
use forebay_sim::{Exchange, Handing, PairRole, Speech};
use forebay_tests::announcing::Announced;
use forebay_tests::raw::{Raw, Taken};
use forebay_tests::{Site, run, site};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::setting::{ONE_EACH, Shape, kv_port};

/// The application in front of a prefill worker and a decode worker.
async fn in_front_of(prefill: String, decode: String) -> Site {
    in_front_of_all(ONE_EACH, [prefill, decode], PairSettings::default().ready_timeout).await
}

/// The application in front of as many.
async fn in_front_of_all<const N: usize>(shape: Shape, urls: [String; N], ready: Duration) -> Site {
    let mut settings = shape.by(Connector::Lmcache).settings(urls.into_iter());
    let pairs = settings.router.pairs.as_mut().unwrap();
    (pairs.allow_version_skew, pairs.ready_timeout) = (true, ready);
    Site { app: site::start(&settings).await, workers: Vec::new() }
}

/// The body of a request, which gets this answer.
async fn answer(taken: &mut Taken, json: &str) -> String {
    let length: usize = taken.header("content-length").parse().unwrap();
    let body = String::from_utf8(taken.read(length).await.to_vec()).unwrap();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        json.len()
    );
    taken.send(head + json).await;
    body
}

const TOKENS: &str = r#"{"count":2,"max_model_len":32,"tokens":[1,2],"token_strs":null}"#;

/// What a prefill worker answers whose first token has this text.
fn prefilled(text: &str) -> String {
    format!(
        r#"{{"id":"cmpl-p","object":"text_completion","created":1,"model":"tiny","choices":[{{"index":0,"text":"{text}","finish_reason":"length"}}],"usage":{{"prompt_tokens":2,"completion_tokens":1,"total_tokens":3}},"kv_transfer_params":{{"first_tok":7}}}}"#
    )
}

/// The id under which a prefill leg is to write.
fn req_id(leg: &str) -> String {
    let leg: serde_json::Value = serde_json::from_str(leg).unwrap();
    leg["kv_transfer_params"]["disagg_spec"]["req_id"].as_str().unwrap().to_owned()
}

/// The number of the worker to which a prefill leg is to write, if it is one of these.
fn receiver(leg: &str, among: std::ops::Range<usize>) -> usize {
    let leg: serde_json::Value = serde_json::from_str(leg).unwrap();
    let port = &leg["kv_transfer_params"]["disagg_spec"]["receiver_init_port"][0];
    among.into_iter().find(|i| *port == kv_port(*i)).unwrap()
}

/// Each of so many ranks says that it has written.
async fn written(site: &Site, id: &str, ranks: usize) {
    // What kind of socket speaks is of no interest.
    let opening = Announced::of("P", "http://127.0.0.1:1", "127.0.0.1:1").opening();
    let message = [b"\x00\x2a\x81\xa6req_id\xd9\x20", id.as_bytes()].concat();
    for _ in 0..ranks {
        let mut stream = TcpStream::connect(site.app.readiness_address().unwrap()).await.unwrap();
        stream.write_all(&[&opening[..], &message].concat()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut rest = Vec::new();
        let _closed = stream.read_to_end(&mut rest).await;
    }
}

const STREAM: &str = "data: {\"id\":\"cmpl-d\",\"object\":\"text_completion\",\"created\":2,\"model\":\"tiny\",\"choices\":[{\"index\":0,\"text\":\" b\",\"finish_reason\":null}]}\n\ndata: {\"id\":\"cmpl-d\",\"object\":\"text_completion\",\"created\":2,\"model\":\"tiny\",\"choices\":[{\"index\":0,\"text\":\" c\",\"finish_reason\":\"length\"}]}\n\ndata: {\"id\":\"cmpl-d\",\"object\":\"text_completion\",\"created\":2,\"model\":\"tiny\",\"choices\":[],\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":2,\"total_tokens\":4}}\n\ndata: [DONE]\n\n";

#[test]
fn a_stream_whose_length_was_told_is_rewritten_like_any_other_wherever_it_is_split() {
    run(async {
        let exchange = Exchange::default();
        let mut options = ONE_EACH.by(Connector::Lmcache).options(PairRole::Prefill, &exchange);
        options.pair.as_mut().unwrap().handing =
            Handing::Disagg { port: kv_port(0), speech: Speech::default() };
        let (prefill, mut decode) = (site::worker(options), Raw::start().await);
        let site = in_front_of(prefill.url(), decode.url()).await;
        exchange.set_proxy(site.app.readiness_address().unwrap());
        let mut client = site.client().await;
        let body = r#"{"model":"tiny","messages":[{"role":"user","content":"x"}],"max_tokens":3,"stream":true,"stream_options":{"include_usage":true}}"#;
        let asked = forebay_tests::request("POST", "/v1/chat/completions", &[], body.as_bytes());
        client.send(&asked).await;
        let mut leg = decode.next().await;
        // The first record whole, the second in two pieces.
        let (first, rest) = STREAM.split_at(200);
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: ";
        leg.send(format!("{head}{}\r\n\r\n{first}", STREAM.len())).await;
        let began = client.head().await.unwrap();
        assert_eq!(began.status, 200);
        leg.send(rest).await;
        let text = String::from_utf8(client.body(&began, "POST").await.unwrap()).unwrap();
        assert_eq!(text.matches("chat.completion.chunk").count(), 5, "{text}");
        assert!(text.contains(r#","completion_tokens":3,"total_tokens":4}"#), "{text}");
    });
}

#[test]
fn a_prompt_without_tokens_is_for_the_decode_worker_and_nobodys_fault() {
    run(async {
        let (mut prefill, mut decode) = (Raw::start().await, Raw::start().await);
        let site = in_front_of(prefill.url(), decode.url()).await;
        let mut client = site.client().await;
        let body = r#"{"model":"tiny","prompt":"","max_tokens":3}"#;
        client.send(&forebay_tests::request("POST", "/v1/completions", &[], body.as_bytes())).await;
        let mut asked = prefill.next().await;
        assert!(asked.head.starts_with("POST /tokenize "), "{}", asked.head);
        answer(&mut asked, r#"{"count":0,"max_model_len":32,"tokens":[],"token_strs":null}"#).await;
        let mut plain = decode.next().await;
        answer(&mut plain, r#"{"choices":[]}"#).await;
        assert_eq!(plain.came, body.as_bytes());
        assert_eq!(client.answer().await.unwrap().status(), 200);
        let count = async |name: &str, label: &str| site.metric(name, &[label]).await;
        assert_eq!(count("forebay_pd_recomputes_total", "no_hand_over").await, 1);
        assert_eq!(count("forebay_pd_retries_total", "prefill").await, 0);
        let legs = count("forebay_pd_prefill_seconds_count", "").await;
        assert_eq!(legs, 0, "there was none");
    });
}

#[test]
fn nobody_goes_on_behind_a_token_that_ends_inside_a_character() {
    run(async {
        let (mut prefill, mut decode) = (Raw::start().await, Raw::start().await);
        let site = in_front_of(prefill.url(), decode.url()).await;
        for (text, goes_on) in [("", false), ("\u{fffd}", false), (" a", true)] {
            let mut client = site.client().await;
            let body = r#"{"model":"tiny","prompt":"x","max_tokens":3}"#;
            client.send(&forebay_tests::request("POST", "/v1/completions", &[], body.as_bytes())).await;
            answer(&mut prefill.next().await, TOKENS).await;
            let leg = answer(&mut prefill.next().await, &prefilled(text)).await;
            // What a decode worker finds before all is written, it would read.
            written(&site, &req_id(&leg), 1).await;
            assert!(decode.is_idle());
            written(&site, &req_id(&leg), 2).await;
            let answered = r#"{"choices":[{"index":0,"text":"b"}]}"#;
            let asked = answer(&mut decode.next().await, answered).await;
            assert_eq!(asked == body, !goes_on, "{asked}");
            let got = client.answer().await.unwrap().json()["choices"][0]["text"].to_string();
            assert_eq!(got, if goes_on { "\" ab\"" } else { "\"b\"" });
        }
        assert_eq!(site.metric("forebay_pd_recomputes_total", &["no_hand_over"]).await, 2);
    });
}

#[test]
fn what_may_be_written_in_part_is_read_by_nobody_if_there_is_another_decode_worker() {
    run(async {
        let body = r#"{"model":"tiny","prompt":"x","max_tokens":3}"#;
        let asked = forebay_tests::request("POST", "/v1/completions", &[], body.as_bytes());
        // Not all ranks say in time that they have written.
        let (mut prefill, mut decodes) = (Raw::start().await, [Raw::start().await, Raw::start().await]);
        let urls = [prefill.url(), decodes[0].url(), decodes[1].url()];
        let site = in_front_of_all(Shape { decodes: 2, ..ONE_EACH }, urls, Duration::from_millis(100)).await;
        let mut client = site.client().await;
        client.send(&asked).await;
        answer(&mut prefill.next().await, TOKENS).await;
        let leg = answer(&mut prefill.next().await, &prefilled(" a")).await;
        let other = &mut decodes[2 - receiver(&leg, 1..3)];
        answer(&mut other.next().await, r#"{"choices":[]}"#).await;
        assert_eq!(client.answer().await.unwrap().status(), 200);

        // The prefill worker breaks off.
        let (mut one, mut two) = (Raw::start().await, Raw::start().await);
        let decodes = [Raw::start().await, Raw::start().await];
        let urls = [one.url(), two.url(), decodes[0].url(), decodes[1].url()];
        let shape = Shape { prefills: 2, decodes: 2, ..ONE_EACH };
        let site = in_front_of_all(shape, urls, Duration::from_secs(30)).await;
        let mut client = site.client().await;
        client.send(&asked).await;
        let (mut asked, breaks, other) = tokio::select! {
            asked = one.next() => (asked, &mut one, &mut two),
            asked = two.next() => (asked, &mut two, &mut one),
        };
        answer(&mut asked, TOKENS).await;
        let mut broken = breaks.next().await;
        let length: usize = broken.header("content-length").parse().unwrap();
        let first = String::from_utf8(broken.read(length).await.to_vec()).unwrap();
        drop(broken);
        let leg = answer(&mut other.next().await, &prefilled(" a")).await;
        assert_ne!(receiver(&leg, 2..4), receiver(&first, 2..4));
    });
}

#[test]
fn blocks_that_were_ordered_of_who_tells_no_first_token_are_read_by_nobody_if_there_is_another_decode_worker()
{
    run(async {
        let (mut prefill, mut decodes) = (Raw::start().await, [Raw::start().await, Raw::start().await]);
        let urls = [prefill.url(), decodes[0].url(), decodes[1].url()];
        let site = in_front_of_all(Shape { decodes: 2, ..ONE_EACH }, urls, Duration::from_secs(30)).await;
        for untold in [r#"{"first_tok":7}"#, r#""length""#] {
            let mut client = site.client().await;
            let body = r#"{"model":"tiny","prompt":"x","max_tokens":3}"#;
            client.send(&forebay_tests::request("POST", "/v1/completions", &[], body.as_bytes())).await;
            answer(&mut prefill.next().await, TOKENS).await;
            let leg = answer(&mut prefill.next().await, &prefilled(" a").replace(untold, "null")).await;
            let other = &mut decodes[2 - receiver(&leg, 1..3)];
            assert_eq!(answer(&mut other.next().await, r#"{"choices":[]}"#).await, body);
            assert_eq!(client.answer().await.unwrap().status(), 200);
        }
        assert_eq!(site.metric("forebay_pd_recomputes_total", &["no_hand_over"]).await, 2);
    });
}

#[test]
fn a_worker_that_breaks_off_its_ids_or_has_none_is_charged_for_it() {
    run(async {
        let (mut prefill, mut decode) = (Raw::start().await, Raw::start().await);
        let urls = [prefill.url(), decode.url()];
        let mut settings = ONE_EACH.by(Connector::Lmcache).settings(urls.into_iter());
        settings.breaker.failure_threshold = 2;
        settings.router.pairs.as_mut().unwrap().allow_version_skew = true;
        let site = Site { app: site::start(&settings).await, workers: Vec::new() };
        for breaks_off in [false, true] {
            let mut client = site.client().await;
            let body = r#"{"model":"tiny","prompt":"x","max_tokens":3}"#;
            client.send(&forebay_tests::request("POST", "/v1/completions", &[], body.as_bytes())).await;
            let mut asked = prefill.next().await;
            match breaks_off {
                false => drop(answer(&mut asked, r#"{"count":1}"#).await),
                true => {
                    asked.send("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"tokens\":[").await;
                    drop(asked);
                }
            }
            answer(&mut decode.next().await, r#"{"choices":[]}"#).await;
            assert_eq!(client.answer().await.unwrap().status(), 200);
        }
        let opened = site.metric("forebay_breaker_transitions_total", &["to=\"open\""]).await;
        assert_eq!(opened, 1);
    });
}

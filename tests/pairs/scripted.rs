//! LMCache with workers whose answers are written here: what simulated ones do not say.

use forebay_pd::Connector;
use forebay_sim::{Exchange, Handing, PairRole, Speech};
use forebay_tests::raw::{Raw, Taken};
use forebay_tests::{Site, run, site};

use crate::setting::{ONE_EACH, kv_port};

/// The application in front of a prefill worker and a decode worker.
async fn in_front_of(prefill: String, decode: String) -> Site {
    let mut settings = ONE_EACH.by(Connector::Lmcache).settings([prefill, decode].into_iter());
    settings.router.pairs.as_mut().unwrap().allow_version_skew = true;
    Site { app: site::start(&settings).await, workers: Vec::new() }
}

async fn answer(taken: &mut Taken, json: &str) {
    let length: usize = taken.header("content-length").parse().unwrap();
    taken.read(length).await;
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        json.len()
    );
    taken.send(head + json).await;
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

//! LMCache with workers whose answers are written here: what simulated ones do not say.

use forebay_pd::Connector;
use forebay_sim::{Exchange, Handing, PairRole, Speech};
use forebay_tests::raw::Raw;
use forebay_tests::{Site, run, site};

use crate::setting::{ONE_EACH, kv_port};

/// The application in front of a prefill worker and a decode worker.
async fn in_front_of(prefill: String, decode: String) -> Site {
    let mut settings = ONE_EACH.by(Connector::Lmcache).settings([prefill, decode].into_iter());
    settings.router.pairs.as_mut().unwrap().allow_version_skew = true;
    Site { app: site::start(&settings).await, workers: Vec::new() }
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

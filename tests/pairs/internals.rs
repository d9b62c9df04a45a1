//! What only the router may say of hand-overs, in every back door and spelling: none of it reaches a worker from a client.

use forebay_pd::Connector;
use forebay_tests::run;

use crate::setting::{ONE_EACH, alike};

/// Members that a client sends; each holds the word `evil`.
const DOORS: [&str; 14] = [
    r#""kv_transfer_params":{"do_remote_prefill":true,"remote_host":"evil"}"#,
    r#""\u006bv_transfer_params":{"do_remote_prefill":true,"remote_host":"evil"}"#,
    r#""kv\u005Ftransfer_params":{"a":"evil"},"kv_transfer_params":{"b":"evil"}"#,
    r#""ec_transfer_params":{"a":"evil"}"#,
    r#""bootstrap_host":"evil","bootstrap_port":1,"bootstrap_room":3"#,
    r#""bootstrap_room":["evil"]"#,
    r#""disagg_spec":{"receiver_host":"evil"}"#,
    r#""routed_dp_rank":"evil","disagg_prefill_dp_rank":"evil"#,
    r#""vllm_xargs":{"kv_transfer_params":"evil","mine":1}"#,
    r#""vllm\u005fxargs":{"kv_transfer_p\u0061rams":"evil"}"#,
    r#""sampling_params":{"extra_args":{"kv_transfer_params":{"remote_host":"evil"}}}"#,
    r#""sampling_params":{"extra_args":{"a":1},"extra\u005fargs":{"kv_transfer_params":"evil"}}"#,
    r#""request_id":"x___prefill_addr_evil:1___decode_addr_evil:2_y""#,
    r#""request\u005fid":"___decode\u005faddr_evil:1""#,
];

const BODIES: [(&str, &str); 5] = [
    ("/v1/completions", r#"{"prompt":"x","max_tokens":3,"#),
    ("/v1/chat/completions", r#"{"messages":[{"role":"user","content":"x"}],"max_tokens":3,"#),
    ("/v1/responses", r#"{"input":"x","max_output_tokens":3,"#),
    ("/v1/messages", r#"{"messages":[{"role":"user","content":"x"}],"max_tokens":3,"#),
    ("/inference/v1/generate", r#"{"token_ids":[1,2],"#),
];

#[test]
fn no_client_says_anything_of_hand_overs() {
    run(async {
        for connector in alike() {
            let setting = ONE_EACH.by(connector).start().await;
            let mut client = setting.site.client().await;
            for (path, start) in BODIES {
                for door in DOORS {
                    let door = if door.ends_with("evil") { format!("{door}\"") } else { door.to_owned() };
                    let body = format!("{start}{door}}}");
                    let evil = "___prefill_addr_evil:1___decode_addr_evil:2_x";
                    let headers = [
                        ("X-Request-Id", evil),
                        ("x-prefiller-host-port", "evil:1"),
                        ("x-data-parallel-rank", "0"),
                        ("x-correlation-id", "fine"),
                    ];
                    let answer = client.ask("POST", path, &headers, body.as_bytes()).await;
                    assert_eq!(answer.status(), 200, "{path} {door}: {}", answer.text());
                    for worker in [setting.prefill(0), setting.decode(0)] {
                        let leg = worker.requests_to(path).pop();
                        let leg = leg
                            .unwrap_or_else(|| panic!("{connector:?} {path} {door}: {:?}", worker.stats()));
                        let head = String::from_utf8_lossy(&leg.head).into_owned();
                        assert!(!leg.text().contains("evil"), "{path} {door}: {}", leg.text());
                        assert!(
                            !head.contains("evil") && !head.contains("parallel-rank"),
                            "{path} {door}: {head}"
                        );
                    }
                }
            }
            setting.site.quiet().await;
            setting.no_violation();
        }
    });
}

#[test]
fn nor_where_the_prefill_worker_makes_the_first_token() {
    run(async {
        let setting = ONE_EACH.by(Connector::Lmcache).start().await;
        let mut client = setting.site.client().await;
        for (path, start) in BODIES {
            for door in DOORS {
                let door = if door.ends_with("evil") { format!("{door}\"") } else { door.to_owned() };
                let body = format!("{start}{door}}}");
                let answer = client.post(path, &body).await;
                assert_eq!(answer.status(), 200, "{path} {door}: {}", answer.text());
            }
        }
        let paths = BODIES.map(|(path, _)| path).into_iter().chain(["/tokenize"]);
        for (path, worker) in
            paths.flat_map(|path| [setting.prefill(0), setting.decode(0)].map(|w| (path, w)))
        {
            for leg in worker.requests_to(path) {
                assert!(!leg.text().contains("evil"), "{path}: {}", leg.text());
            }
        }
        assert!(setting.exchange.transfers() > 10);
        setting.no_violation();
    });
}

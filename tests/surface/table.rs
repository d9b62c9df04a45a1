//! Every method and path that vLLM serves: what kind of request it is, whom it reaches, that it arrives as it was sent, and
//! that no load is left.

use std::collections::BTreeSet;

use forebay_policy::PolicyKind;
use forebay_router::route::templates;
use forebay_router::{Class, Route};
use forebay_tests::client::{Client, request};
use forebay_tests::{Site, run};
use http::Method;

/// What is expected of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    /// A worker that a policy chooses by the prompt.
    Chosen,
    /// Any one worker.
    Any,
    /// Any one worker, while the body still comes.
    Upload,
    /// Any one worker, which may go on with another protocol.
    Tunnel,
    /// Each worker until one knows it.
    Asked,
    /// All workers.
    All,
    /// The worker that the request names.
    Named,
    /// The router itself.
    Own,
}

use To::{All, Any, Asked, Chosen, Named, Own, Tunnel, Upload};

const CHAT: &str = r#" {"messages":[ {"role":"user","content":"caf\u00e9"} ],"temperature":0.70000000000000001 ,"zz":{"a":[1e400]}}"#;
const TEXT: &str = r#"{ "prompt" : "x" , "input":"y","max_tokens":1,"unknown":null}"#;

#[rustfmt::skip]
const SERVED: &[(&str, &str, &str, To)] = &[
    ("POST", "/v1/chat/completions",            CHAT, Chosen),
    ("POST", "/v1/chat/completions/tokens",     r#"{"tokens":[1,2,3]}"#, Chosen),
    ("POST", "/v1/chat/completions/batch",      r#"{"messages":[[{"role":"user","content":"a"}],[{"role":"user","content":"b"}]]}"#, Chosen),
    ("POST", "/v1/completions",                 TEXT, Chosen),
    ("POST", "/v1/responses",                   TEXT, Chosen),
    ("POST", "/v1/messages?beta=true",          CHAT, Chosen),
    ("POST", "/v1/messages/count_tokens?beta=true", CHAT, Any),
    ("POST", "/cohere/v2/chat",                 CHAT, Chosen),
    ("POST", "/cohere/v2/chat/render",          CHAT, Any),
    ("POST", "/v1/systemone",                   TEXT, Any),
    ("POST", "/v1/decisions",                   TEXT, Any),
    ("POST", "/generative_scoring",             TEXT, Any),
    ("POST", "/inference/v1/generate",          r#"{"token_ids":[1,2],"sampling_params":{}}"#, Chosen),
    ("POST", "/generate",                       r#"{"text":"x"}"#, Chosen),
    ("POST", "/v1/chat/completions/render",     CHAT, Any),
    ("POST", "/v1/completions/render",          TEXT, Any),
    ("POST", "/v1/messages/render",             CHAT, Any),
    ("POST", "/v1/responses/render",            TEXT, Any),
    ("POST", "/v1/chat/completions/derender",   r#"{"token_ids":[1]}"#, Any),
    ("POST", "/v1/completions/derender",        r#"{"token_ids":[1]}"#, Any),
    ("POST", "/v1/embeddings",                  TEXT, Chosen),
    ("POST", "/embeddings",                     TEXT, Chosen),
    ("POST", "/v2/embed",                       r#"{"texts":["a","b"],"input_type":"search_query"}"#, Chosen),
    ("POST", "/pooling",                        TEXT, Chosen),
    ("POST", "/v1/pooling",                     TEXT, Chosen),
    ("POST", "/classify",                       TEXT, Chosen),
    ("POST", "/v1/classify",                    TEXT, Chosen),
    ("POST", "/score",                          r#"{"queries":"a","documents":["b"]}"#, Chosen),
    ("POST", "/v1/score",                       r#"{"data_1":"a","data_2":["b"]}"#, Chosen),
    ("POST", "/rerank",                         r#"{"query":"a","documents":["b"]}"#, Chosen),
    ("POST", "/v1/rerank",                      r#"{"query":"a","documents":["b"],"top_n":1}"#, Chosen),
    ("POST", "/v2/rerank",                      r#"{"query":"a","documents":["b"]}"#, Chosen),
    ("POST", "/invocations",                    CHAT, Chosen),
    ("POST", "/v1/audio/transcriptions",        "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\ntiny\r\n--b--\r\n", Upload),
    ("POST", "/v1/audio/translations",          "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\nx\r\n--b--\r\n", Upload),
    ("GET",  "/v1/realtime?model=tiny",         "", Tunnel),
    ("POST", "/tokenize",                       TEXT, Any),
    ("POST", "/detokenize",                     r#"{"tokens":[1,2]}"#, Any),
    ("GET",  "/tokenizer_info",                 "", Any),
    ("GET",  "/v1/responses/resp_1?starting_after=3&stream=true", "", Asked),
    ("POST", "/v1/responses/resp_1/cancel",     "", Asked),
    ("DELETE", "/v1/responses/resp_1",          "", Asked),
    ("GET",  "/v1/something/newer?x=1",         "", Any),
    ("POST", "/v2/newer",                       TEXT, Any),
    ("PUT",  "/inference/v1/newer",             TEXT, Any),
    ("DELETE", "/cohere/newer",                 "", Any),

    ("GET",  "/ping",                           "", Own),
    ("POST", "/ping",                           "", Own),
    ("GET",  "/health",                         "", Own),
    ("GET",  "/version",                        "", Own),
    ("GET",  "/v1/models",                      "", Own),
    ("GET",  "/metrics",                        "", Own),
    ("GET",  "/load",                           "", All),
    ("GET",  "/kv_event_sources",               "", All),
    ("POST", "/start_profile",                  "", All),
    ("POST", "/stop_profile",                   "", All),
    ("POST", "/v1/load_lora_adapter",           r#"{"lora_name":"l","lora_path":"/l"}"#, All),
    ("POST", "/v1/unload_lora_adapter",         r#"{"lora_name":"l"}"#, All),
    ("POST", "/scale_elastic_ep",               r#"{"new_data_parallel_size":2,"drain_timeout":120}"#, Named),
    ("POST", "/is_scaling_elastic_ep",          "", Named),
    ("POST", "/fault_tolerance/apply",          r#"{"instruction":"retry","params":{}}"#, Named),
    ("GET",  "/fault_tolerance/status",         "", Named),
    ("POST", "/inference/v1/abort_requests",    r#"{"request_ids":["a"]}"#, All),
    ("POST", "/abort_requests",                 r#"{"request_ids":["a"]}"#, All),
    ("POST", "/reset_prefix_cache?reset_running_requests=false", "", All),
    ("POST", "/reset_mm_cache",                 "", All),
    ("POST", "/reset_encoder_cache",            "", All),
    ("POST", "/collective_rpc",                 r#"{"method":"m"}"#, All),
    ("GET",  "/server_info?config_format=json", "", All),
    ("POST", "/sleep?level=1&mode=abort",       "", All),
    ("GET",  "/is_sleeping",                    "", All),
    ("POST", "/wake_up",                        "", All),
    ("POST", "/release_kv_cache_memory",        "", All),
    ("POST", "/pause?mode=wait&clear_cache=false", "", All),
    ("GET",  "/is_paused",                      "", All),
    ("POST", "/resume",                         "", All),
    ("POST", "/init_weight_transfer_engine",    "{}", All),
    ("POST", "/shutdown_weight_transfer_engine", "{}", All),
    ("POST", "/start_weight_update",            "{}", All),
    ("POST", "/start_draft_weight_update",      "{}", All),
    ("POST", "/update_weights",                 "{}", All),
    ("POST", "/finish_weight_update",           "{}", All),
    ("POST", "/update_weight_version",          "{}", All),
    ("GET",  "/weight_info",                    "", All),
    ("GET",  "/weight_checker",                 "", All),
    ("GET",  "/get_world_size?include_dp=true", "", All),
];

fn path_of(target: &str) -> &str {
    target.split('?').next().unwrap_or_default()
}

fn is_expected(class: Class, to: To) -> bool {
    match class {
        Class::Routable(_) => to == Chosen,
        Class::PickOne => to == Any,
        Class::Upload => to == Upload,
        Class::Tunnel => to == Tunnel,
        Class::Stored => to == Asked,
        Class::Control(action) => to == if action.addressed { Named } else { All },
        Class::Own(_) | Class::Admin { .. } => to == Own,
        Class::Refused(_) => false,
    }
}

/// How many requests to this target each worker got, and that each was as it was sent.
fn arrived(site: &Site, method: &str, target: &str, body: &str) -> Vec<usize> {
    let of = |worker: &forebay_sim::Worker| {
        let all = worker.requests_to(path_of(target));
        // The router asks some things on its own.
        let is_ours = |request: &&forebay_sim::Recorded| {
            request.header("x-mine") == Some("1") && request.method == method
        };
        let ours: Vec<_> = all.iter().filter(is_ours).collect();
        for request in &ours {
            assert_eq!(request.target, target);
            assert_eq!(request.text(), body, "{target}");
        }
        ours.len()
    };
    site.workers.iter().map(of).collect()
}

async fn ask(client: &mut Client, (method, target, body, to): (&str, &str, &str, To), named: &str) -> u16 {
    let kind = if to == Upload { "multipart/form-data; boundary=b" } else { "application/json" };
    let mut headers = vec![("x-mine", "1")];
    if to == Named {
        headers.push(("x-forebay-worker", named));
    }
    if to == Tunnel {
        headers.extend([("connection", "Upgrade"), ("upgrade", "websocket")]);
    }
    let bytes = request(method, target, &headers, body.as_bytes());
    let at = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    let head = String::from_utf8_lossy(&bytes[..at]).replace("application/json", kind);
    client.send(&[head.as_bytes(), &bytes[at..]].concat()).await;
    client.answer_to(method).await.unwrap().status()
}

#[test]
fn every_request_that_vllm_serves_reaches_whom_it_is_for_as_it_was_sent() {
    run(async {
        let site = Site::start(3, PolicyKind::RoundRobin).await;
        let named = site.workers[1].url();
        let mut client = site.client().await;
        for &(method, target, body, to) in SERVED {
            let route = Route::find(&method.parse::<Method>().unwrap(), path_of(target), true);
            assert!(is_expected(route.class, to), "{method} {target} is {:?}", route.class);
            let status = ask(&mut client, (method, target, body, to), &named).await;
            let mut arrived = arrived(&site, method, target, body);
            let whole = arrived.clone();
            arrived.sort_unstable();
            match to {
                Chosen | Any | Upload | Tunnel => {
                    assert_eq!(arrived, [0, 0, 1], "{method} {target}: {status}");
                }
                Asked | All => assert_eq!(arrived, [1, 1, 1], "{method} {target}: {status}"),
                Named => assert_eq!(whole, [0, 1, 0], "{method} {target}: {status}"),
                Own => assert_eq!((status, arrived), (200, vec![0, 0, 0]), "{method} {target}"),
            }
            site.quiet().await;
        }
    });
}

#[test]
fn no_route_to_a_worker_is_missing_in_this_table() {
    let shown: BTreeSet<&str> = SERVED
        .iter()
        .map(|(method, target, ..)| {
            Route::find(&method.parse::<Method>().unwrap(), path_of(target), true).template
        })
        .collect();
    for template in templates().filter(|template| !shown.contains(template)) {
        for method in [Method::GET, Method::POST, Method::DELETE] {
            let class = Route::find(&method, &template.replace('*', "x"), false).class;
            let is_shown = matches!(class, Class::Own(_) | Class::Admin { .. } | Class::Refused(_));
            assert!(is_shown, "{method} {template} is {class:?}, and no row above shows it");
        }
    }
}

#[test]
fn what_vllm_does_not_serve_reaches_nobody() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let mut client = site.client().await;
        for (method, target) in [
            ("GET", "/docs"),
            ("GET", "/openapi.json"),
            ("POST", "/"),
            ("GET", "/invocations"),
            ("POST", "/tokenize/x"),
            ("DELETE", "/sleep"),
            ("TRACE", "/generate"),
        ] {
            let status = ask(&mut client, (method, target, "", Any), "").await;
            assert!(matches!(status, 404 | 405), "{method} {target}: {status}");
            assert_eq!(arrived(&site, method, target, ""), [0]);
        }
    });
}

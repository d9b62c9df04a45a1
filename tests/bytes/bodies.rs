//! Bodies that a parser would change arrive as they were sent, on every route that carries a prompt.

use forebay_policy::PolicyKind;
use forebay_tests::client::{chunked, request};
use forebay_tests::{Site, run};

pub(crate) const ROUTABLE: [&str; 18] = [
    "/v1/chat/completions",
    "/v1/chat/completions/tokens",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/inference/v1/generate",
    "/generate",
    "/v1/embeddings",
    "/embeddings",
    "/pooling",
    "/v1/pooling",
    "/classify",
    "/v1/classify",
    "/score",
    "/v1/score",
    "/rerank",
    "/v1/rerank",
    "/v2/rerank",
];

fn nasty() -> Vec<Vec<u8>> {
    let texts = [
        r#"{}"#,
        r#"{"prompt":"plain","max_tokens":1}"#,
        r#" { "prompt" : "x" , "z":1,"a":2 , "unknown":{"deep":{"deeper":[{"kv_transfer_params":1}]}} } "#,
        r#"{"temperature":0.70000000000000001,"top_p":1e400,"big":123456789012345678901234567890,"e":1E-7,"z":-0.0}"#,
        r#"{"prompt":"first","prompt":"second","stop":null,"stop":["a"],"prompt":"third"}"#,
        r#"{"prompt":"\u0041\/\b\f\n\r\t\"\\ \u00e9 é \ud83d\ude00 😀","caf\u00e9":1}"#,
        r#"{"prompt":"lone \ud800 and \udfff surrogates","\ud800":"key"}"#,
        r#"{"a":NaN,"b":Infinity,"c":-Infinity,"prompt":"x"}"#,
        r#"{"messages":[{"role":"assistant","content":null},{"role":"user","content":[{"type":"text","text":"hi"}]}]}"#,
        r#"{"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"f"}}]}"#,
        r#"{"prompt":[1,2,3,4294967295],"token_ids":[7,8],"input":[[1,2],[3]]}"#,
        r#"{"prompt":"\"kv_transfer_params\": {\"a\":1}","text_1":"x","text_2":["y","z"]}"#,
        r#"{"vllm_xargs":{"mine":1},"sampling_params":{"extra_args":{"other":[1,2]},"n":1.0},"prompt":"x"}"#,
        r#"{"model":"tiny","prompt":"named"}"#,
        r#"{"model":null,"model":"tiny","prompt":"named last"}"#,
        "{\r\n\t\"prompt\"\n:\r\"white space everywhere\"\t,\r\n\"n\" : 1\n}\n\n",
        "\u{feff}{\"prompt\":\"a byte order mark in front\"}",
        "{\"prompt\":\"a raw tab \t, a raw \u{1} and \u{7f} and \u{2028}\"}",
        r#"{"prompt":"x","nothing":"","":"empty key","[":"]","}":"{"}"#,
    ];
    let mut bodies: Vec<Vec<u8>> = texts.map(|text| text.as_bytes().to_vec()).to_vec();
    let deep = format!(r#"{{"prompt":"x","deep":{}{}}}"#, "[".repeat(900), "]".repeat(900));
    let objects = format!(r#"{{"prompt":"x","deep":{}1{}}}"#, r#"{"a":"#.repeat(400), "}".repeat(400));
    bodies.extend([deep.into_bytes(), objects.into_bytes()]);
    bodies
}

#[test]
fn every_body_arrives_byte_for_byte_on_every_route_with_a_prompt() {
    run(async {
        let site = Site::start(1, PolicyKind::CacheAware).await;
        let mut client = site.client().await;
        for path in ROUTABLE {
            for body in nasty() {
                client.post(path, &body).await;
                let recorded = site.workers[0].requests_to(path).pop().unwrap();
                assert_eq!(recorded.text(), String::from_utf8_lossy(&body), "{path}");
                assert_eq!(recorded.body, body, "{path}");
            }
            assert_eq!(
                site.workers[0].requests_to(path).len(),
                nasty().len(),
                "{path}: one request for each"
            );
        }
        assert_eq!(site.metric("forebay_stripped_total", &[]).await, 0);
    });
}

#[test]
fn a_prompt_of_a_mebibyte_arrives_whole() {
    run(async {
        let site = Site::start(1, PolicyKind::CacheAware).await;
        let words = "0123456789 \u{1f600} \\u0041 ".repeat(60_000);
        let body = format!(r#"{{"prompt":"{words}","max_tokens":1}}"#).into_bytes();
        assert!(body.len() > 1 << 20);
        let mut client = site.client().await;
        client.post("/v1/completions", &body).await;
        client.send(&chunked("/v1/completions", &[], &body, 70_001)).await;
        client.answer().await.unwrap();
        let recorded = site.workers[0].requests_to("/v1/completions");
        assert!(recorded.len() == 2 && recorded.iter().all(|request| request.body == body));
    });
}

#[test]
fn where_the_clients_writes_and_chunks_end_leaves_no_trace() {
    run(async {
        let site = Site::start(1, PolicyKind::CacheAware).await;
        let body = r#"{"prompt":"emoji \ud83d\ude00 😀 in two halves","max_tokens":1}"#.as_bytes();
        let mut client = site.client().await;
        for size in [1, 2, 3, 7, 40] {
            client.send_in_pieces(&request("POST", "/v1/completions", &[], body), size).await;
            assert_eq!(client.answer().await.unwrap().status(), 200);
            client.send(&chunked("/v1/completions", &[], body, size)).await;
            assert_eq!(client.answer().await.unwrap().status(), 200);
            client.send_in_pieces(&chunked("/v1/completions", &[], body, size), 5).await;
            assert_eq!(client.answer().await.unwrap().status(), 200);
        }
        let recorded = site.workers[0].requests_to("/v1/completions");
        assert_eq!(recorded.len(), 15);
        for request in recorded {
            assert_eq!(request.text(), String::from_utf8_lossy(body));
            assert!(!request.chunked, "a body that was read whole has a length");
        }
    });
}

#[test]
fn what_any_worker_can_take_passes_too_whatever_it_is() {
    run(async {
        let site = Site::start(1, PolicyKind::CacheAware).await;
        let mut client = site.client().await;
        let bodies: [&[u8]; 6] =
            [b"[1,2]", b"\"text\"", b"plain text", b"\x00\x01binary\xff\xfe", b"", br#"{"prompt":NaN}"#];
        for path in
            ["/tokenize", "/v1/audio/transcriptions", "/v1/new/thing", "/inference/x", "/cohere/v2/embed"]
        {
            for body in bodies {
                let headers = [("x-note", "kept")];
                let mut bytes = request("POST", path, &headers, body);
                let json = b"application/json";
                let at = bytes.windows(json.len()).position(|window| window == json).unwrap();
                bytes[at..at + json.len()].copy_from_slice(b"application/blob");
                client.send(&bytes).await;
                client.answer().await.unwrap();
                let recorded = site.workers[0].requests_to(path).pop().unwrap();
                assert_eq!(recorded.body, body, "{path}");
            }
            assert_eq!(site.workers[0].requests_to(path).len(), bodies.len(), "{path}");
        }
    });
}

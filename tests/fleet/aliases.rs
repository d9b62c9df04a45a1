//! Models under other names: workers are told theirs, clients read the one that they gave.

use forebay_policy::PolicyKind;
use forebay_router::Aliases;
use forebay_tests::raw::Raw;
use forebay_tests::{Site, run, site};
use serde_json::Value;

async fn site() -> Site {
    Site::start_with(site::workers(1), PolicyKind::CacheAware, |settings| {
        settings.router.aliases = Aliases::new([("gpt-4o".to_owned(), "tiny".to_owned())]);
    })
    .await
}

/// Routes with a body in which only the model is missing, and where their answers name it.
const ROUTES: [(&str, &str, &str); 5] = [
    ("/v1/completions", r#""prompt":"a","max_tokens":2,"temperature":0.70000000000000001"#, "/model"),
    ("/v1/chat/completions", r#""messages":[{"role":"user","content":"tiny"}],"max_tokens":2"#, "/model"),
    ("/v1/responses", r#""input":"a","max_output_tokens":2,"store":false"#, "/model"),
    ("/v1/messages", r#""messages":[{"role":"user","content":"a"}],"max_tokens":2"#, "/model"),
    ("/v1/embeddings", r#""input":"a""#, "/model"),
];

#[test]
fn the_worker_reads_its_own_name_and_the_client_its_alias_on_every_route() {
    run(async {
        let site = site().await;
        let mut client = site.client().await;
        for (path, rest, at) in ROUTES {
            let answer = client.post(path, format!(r#"{{ "model" : "gpt-4o",{rest}}}"#)).await;
            assert_eq!(answer.status(), 200, "{path}: {}", answer.text());
            let json = answer.json();
            assert_eq!(json.pointer(at), Some(&Value::from("gpt-4o")), "{path}: {json}");
            let told = site.workers[0].requests_to(path).pop().unwrap();
            assert_eq!(told.body, format!(r#"{{ "model" : "tiny",{rest}}}"#).into_bytes(), "{path}");
            // The name that the worker has is as good, and its answer is untouched.
            let plain = client.post(path, format!(r#"{{"model":"tiny",{rest}}}"#)).await;
            assert_eq!(plain.json().pointer(at), Some(&Value::from("tiny")), "{path}");
        }
        assert_eq!(site.metric("forebay_requests_total", &[r#"model="tiny""#]).await, 10);
        site.quiet().await;
    });
}

#[test]
fn streams_name_the_alias_in_each_record_that_names_the_model() {
    run(async {
        let site = site().await;
        let mut client = site.client().await;
        for (path, rest, _) in &ROUTES[..4] {
            let ask = |name: &str| format!(r#"{{"model":"{name}",{rest},"stream":true}}"#);
            let plain = client.post(path, ask("tiny")).await.text();
            let renamed = client.post(path, ask("gpt-4o")).await.text();
            let named = |text: &str, name: &str| text.matches(&format!(r#""model":"{name}""#)).count();
            assert!(named(&plain, "tiny") > 0, "{path}: {plain}");
            assert_eq!(named(&renamed, "gpt-4o"), named(&plain, "tiny"), "{path}: {renamed}");
            assert_eq!(named(&renamed, "tiny"), 0, "{path}: {renamed}");
            assert_eq!(renamed.lines().count(), plain.lines().count(), "{path}");
        }
    });
}

#[test]
fn aliases_are_listed_beside_their_models_and_share_their_caches() {
    run(async {
        let site = site().await;
        let mut client = site.client().await;
        let list = client.get("/v1/models").await.json();
        let data = list["data"].as_array().unwrap();
        assert_eq!((&data[0]["id"], &data[1]["id"]), (&"tiny".into(), &"gpt-4o".into()), "{list}");
        assert_eq!(data[0]["max_model_len"], data[1]["max_model_len"]);
        let ask = |name: &str| {
            let prompt = "word ".repeat(400);
            format!(r#"{{"model":"{name}","prompt":"{prompt}","max_tokens":1}}"#)
        };
        client.post("/v1/completions", ask("tiny")).await;
        let cached = client.post("/v1/completions", ask("gpt-4o")).await.json();
        assert!(cached["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64() > Some(0), "{cached}");
        assert_eq!(
            client.post("/v1/completions", ask("gpt-5")).await.status(),
            404,
            "what is neither a model nor an alias is not served"
        );
    });
}

/// A form with sound, as a client sends it; the model is told before the sound or behind it.
fn form(model: &str, is_first: bool, length_told: bool) -> Vec<u8> {
    let part =
        |head: &str, value: &str| format!("--b\r\nContent-Disposition: form-data; {head}\r\n\r\n{value}\r\n");
    let mut parts =
        [part("name=\"model\"", model), part("name=\"file\"; filename=\"a\"", &"x".repeat(100_000))];
    if !is_first {
        parts.reverse();
    }
    let form = format!("{}--b--\r\n", parts.concat());
    let head = "POST /v1/audio/transcriptions HTTP/1.1\r\nhost: h\r\ncontent-type: multipart/form-data; boundary=b\r\n";
    let bytes = if length_told {
        format!("{head}content-length: {}\r\n\r\n{form}", form.len())
    } else {
        format!("{head}transfer-encoding: chunked\r\n\r\n{:x}\r\n{form}\r\n0\r\n\r\n", form.len())
    };
    bytes.into_bytes()
}

/// What comes behind the head.
fn body_of(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap().split_once("\r\n\r\n").unwrap().1.to_owned()
}

#[test]
fn forms_are_put_right_while_they_come() {
    run(async {
        let site = site().await;
        let mut client = site.client().await;
        for is_first in [true, false] {
            for length_told in [true, false] {
                client.send(&form("gpt-4o", is_first, length_told)).await;
                let answer = client.answer().await.unwrap();
                assert_eq!(answer.status(), 200, "{}", answer.text());
                let told = site.workers[0].requests_to("/v1/audio/transcriptions").pop().unwrap();
                assert_eq!(told.text(), body_of(&form("tiny", is_first, true)));
            }
        }
        site.quiet().await;
    });
}

#[test]
fn the_query_of_a_connection_that_switches_protocols_is_put_right() {
    run(async {
        let mut raw = Raw::start().await;
        let mut settings = site::settings(PolicyKind::RoundRobin, &[raw.url()]);
        let alias = ("nick name".to_owned(), "org/model&1".to_owned());
        settings.router.aliases = Aliases::new([alias]);
        let site = Site { app: site::start(&settings).await, workers: Vec::new() };
        for (asked, told) in [
            ("a=1&model=nick%20name&b=2", "a=1&model=org%2Fmodel%261&b=2"),
            ("model=nick+name&model=nick+name", "model=org%2Fmodel%261&model=nick+name"),
            ("model=other", "model=other"),
        ] {
            let mut client = site.client().await;
            let head = format!(
                "GET /v1/realtime?{asked} HTTP/1.1\r\nhost: h\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n"
            );
            client.send(head.as_bytes()).await;
            let taken = raw.next().await;
            assert_eq!(taken.head.lines().next(), Some(&*format!("GET /v1/realtime?{told} HTTP/1.1")));
        }
    });
}

#[test]
fn an_answer_that_names_the_model_behind_a_long_text_is_put_right_too() {
    run(async {
        let site = site().await;
        let text = "word ".repeat(4000);
        let answer = format!(r#"{{"id":"m","content":[{{"type":"text","text":"{text}"}}],"model":"tiny"}}"#);
        site.workers[0].fail_next(1, forebay_sim::Fault::Status(200, answer.clone()));
        let asked = r#"{"model":"gpt-4o","max_tokens":2,"messages":[{"role":"user","content":"a"}]}"#;
        let got = site.client().await.post("/v1/messages", asked).await;
        assert_eq!((got.status(), got.text()), (200, answer.replace(r#""tiny""#, r#""gpt-4o""#)));
    });
}

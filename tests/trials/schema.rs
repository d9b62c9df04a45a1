//! Reports are what `config/trial.schema.json` says, after whatever has happened; and the schema lets nothing else through.

use forebay_policy::{PolicyKind, Reason};
use forebay_router::outcome::Outcome;
use forebay_sim::{Fault, HoldGate, Stage};
use forebay_tests::{Client, Site, request, run, site, until};
use jsonschema::Validator;
use serde_json::{Value, json};

const SCHEMA: &str = include_str!("../../config/trial.schema.json");
const WHOLE: &str = r#"{"prompt":"a word or two","max_tokens":4}"#;
const STREAM: &str =
    r#"{"prompt":"a word or two","max_tokens":8,"stream":true,"stream_options":{"include_usage":true}}"#;

const FAULTS: [&str; 5] =
    ["internal-error", "close-before-head", "garbage", "close-mid-stream=3", "error-in-stream=3"];

/// The schema of reports, and that of the part of a trial that requests named.
struct Schemas {
    report: Validator,
    named: Validator,
}

impl Schemas {
    fn read() -> Self {
        let schema: Value = serde_json::from_str(SCHEMA).unwrap();
        let named = json!({"$schema": schema["$schema"], "$defs": schema["$defs"], "$ref": "#/$defs/named"});
        let compiled = |schema: &Value| {
            assert!(jsonschema::meta::is_valid(schema));
            jsonschema::validator_for(schema).unwrap()
        };
        Self { report: compiled(&schema), named: compiled(&named) }
    }

    fn report(&self, what: &str, report: &Value) {
        hold(what, &self.report, report);
    }

    fn named(&self, what: &str, report: &Value) {
        hold(what, &self.named, report);
    }
}

fn hold(what: &str, schema: &Validator, value: &Value) {
    let errors: Vec<_> =
        schema.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{what}: {errors:#?}\n{value:#}");
}

/// Requests that are under way, and what holds them at their workers.
struct Held {
    clients: Vec<Client>,
    gates: Vec<HoldGate>,
}

/// Requests that end in many ways. Two clients leave, two stay and are under way when this returns.
async fn mixed_traffic(site: &Site) -> Held {
    whole_answers(site).await;
    failures(site).await;
    under_way(site).await
}

const NAMED: [(&str, &str); 3] =
    [("x-forebay-trial", "named"), ("authorization", "Bearer x"), ("x-session-id", "s")];

/// What a worker or the router answers to its end, be it with a refusal.
async fn whole_answers(site: &Site) {
    let mut client = site.client().await;
    let internal = r#"{"prompt":"a","max_tokens":1,"kv_transfer_params":{},"bootstrap_room":1}"#;
    for (body, status) in [
        (WHOLE, 200),
        (STREAM, 200),
        (internal, 200),
        ("{", 400),
        (r#"{"model":"none","prompt":"a"}"#, 404),
        (r#"{"prompt":"a","max_tokens":-1}"#, 400),
    ] {
        assert_eq!(client.post("/v1/completions", body).await.status(), status, "{body}");
        let named = client.ask("POST", "/v1/completions", &NAMED, body.as_bytes()).await;
        assert_eq!(named.status(), status, "{body}");
    }
    assert_eq!(client.get("/no/such/path").await.status(), 404);
}

/// What goes wrong at a worker.
async fn failures(site: &Site) {
    for fault in FAULTS {
        let mut client = site.client().await;
        let headers = [("x-sim-fault", fault), ("x-forebay-trial", "faulty")];
        client.send(&request("POST", "/v1/completions", &headers, STREAM.as_bytes())).await;
        let _failed = client.answer().await;
    }
}

async fn under_way(site: &Site) -> Held {
    let gates: Vec<_> = site.workers.iter().map(|worker| worker.hold(Stage::AfterChunks(2))).collect();
    let mut clients = Vec::new();
    for _ in 0..4 {
        let mut client = site.client().await;
        client.send(&request("POST", "/v1/completions", &NAMED, STREAM.as_bytes())).await;
        client.head().await.unwrap();
        clients.push(client);
    }
    clients.truncate(2);
    let gone = || {
        let figures = site.app.router().trial(None).unwrap().figures;
        figures.count(Outcome::ClientGoneMidStream) == 2 && figures.requests.under_way == 2
    };
    until("two clients have left, two are there", gone).await;
    Held { clients, gates }
}

async fn to_their_ends(held: Held) {
    drop(held.gates);
    for mut client in held.clients {
        while client.chunk().await.unwrap().is_some() {}
    }
}

#[test]
fn reports_are_what_the_schema_says_after_mixed_traffic_under_every_policy() {
    run(async {
        let schemas = Schemas::read();
        for policy in PolicyKind::ALL {
            let mut site = Site::start_with(site::workers(3), policy, |settings| {
                settings.breaker.failure_threshold = 2;
                settings.router.retry.enabled = false;
            })
            .await;
            let mut admin = site.admin().await;
            schemas.report("before the first request", &admin.get("/admin/trial").await.json());
            let held = mixed_traffic(&site).await;
            let running = admin.get("/admin/trial").await.json();
            assert!(running["requests"]["under_way"].as_u64() > Some(0), "{running}");
            schemas.report("under way", &running);
            schemas.named("of a name", &admin.get("/admin/trial?trial=named").await.json());
            schemas.named("of another", &admin.get("/admin/trial?trial=faulty").await.json());
            let body = r#"{"trial":"t-2","seed":3,"reset_workers_prefix_cache":true}"#;
            let previous = admin.post("/admin/reset", body).await.json()["previous"].take();
            assert_eq!((&previous["final"], &previous["requests"]["under_way"]), (&false.into(), &2.into()));
            schemas.report("previous", &previous);
            schemas.report("with requests from before", &admin.get("/admin/trial").await.json());
            to_their_ends(held).await;
            let last = admin.get("/admin/trials/1").await.json();
            assert_eq!((&last["final"], &last["comparable"]), (&true.into(), &false.into()), "{last}");
            schemas.report("final", &last);
            schemas.named("final, of a name", &admin.get("/admin/trials/1?trial=named").await.json());
            // Nobody is there any more.
            for worker in site.workers.drain(..) {
                worker.stop().await;
            }
            let unreached = site.client().await.post("/v1/completions", WHOLE).await;
            assert_eq!(unreached.status(), 502);
            admin.post("/admin/reset/counters", "").await;
            schemas.report("without workers", &admin.get("/admin/trials/2").await.json());
            schemas.report("with warm policies", &admin.get("/admin/trial").await.json());
        }
    });
}

#[test]
fn the_schema_lists_all_words_that_reports_may_hold() {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let words = |at: &str| -> Vec<String> {
        let list = schema.pointer(at).unwrap_or_else(|| panic!("{at}")).as_array().unwrap();
        list.iter().map(|word| word.as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(words("/$defs/outcomes/propertyNames/enum"), Outcome::ALL.map(Outcome::as_str));
    assert_eq!(words("/$defs/decisions/propertyNames/enum"), Reason::ALL.map(Reason::as_str));
    assert_eq!(words("/$defs/config/properties/policy/enum"), PolicyKind::ALL.map(PolicyKind::as_str));
    assert_eq!(schema["properties"]["schema"]["const"], 1);
}

#[test]
fn a_report_with_a_member_too_many_or_too_few_is_none() {
    run(async {
        let schemas = Schemas::read();
        let site = Site::start(2, PolicyKind::CacheAware).await;
        to_their_ends(mixed_traffic(&site).await).await;
        let report = site.admin().await.get("/admin/trial").await.json();
        schemas.report("as it is", &report);
        let mut objects = 0;
        for at in fixed_objects(&report, String::new()) {
            let names: Vec<String> =
                report.pointer(&at).unwrap().as_object().unwrap().keys().cloned().collect();
            objects += 1;
            let mut more = report.clone();
            more.pointer_mut(&at).unwrap()["unknown"] = 1.into();
            assert!(!schemas.report.is_valid(&more), "one more in {at:?}");
            for name in names {
                let mut less = report.clone();
                less.pointer_mut(&at).unwrap().as_object_mut().unwrap().remove(&name);
                assert!(!schemas.report.is_valid(&less), "{at:?} without {name}");
                let mut other = report.clone();
                other.pointer_mut(&at).unwrap()[&name] = json!({"an": ["unknown", "thing"]});
                assert!(!schemas.report.is_valid(&other), "{at:?} with another {name}");
            }
        }
        assert!(objects > 20, "{objects}");
        for (at, name) in [("/requests/outcomes", "lost"), ("/decisions", "mood"), ("/config", "policy")] {
            let mut other = report.clone();
            other.pointer_mut(at).unwrap()[name] = 1.into();
            assert!(!schemas.report.is_valid(&other), "{name} in {at}");
        }
    });
}

/// Paths of all objects in a report whose members are fixed.
fn fixed_objects(value: &Value, at: String) -> Vec<String> {
    let inner: Vec<(String, &Value)> = match value {
        Value::Object(members) => members.iter().map(|(name, value)| (name.clone(), value)).collect(),
        Value::Array(items) => items.iter().enumerate().map(|(i, value)| (i.to_string(), value)).collect(),
        _ => return Vec::new(),
    };
    let is_map = ["outcomes", "decisions", "stripped"].iter().any(|name| at.ends_with(name));
    let mut found: Vec<String> = inner
        .into_iter()
        .filter(|_| !is_map)
        .flat_map(|(name, value)| fixed_objects(value, format!("{at}/{name}")))
        .collect();
    if value.is_object() && !is_map {
        found.push(at);
    }
    found
}

#[test]
fn faults_are_those_that_the_traffic_means() {
    for name in ["internal-error", "close-before-head", "garbage", "close-mid-stream=3", "error-in-stream=3"]
    {
        assert!(name.parse::<Fault>().is_ok(), "{name}");
    }
}

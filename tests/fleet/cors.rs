//! Browsers' requests from pages of other origins.

use forebay::command::{self, Command};
use forebay::cors::Cors;
use forebay_policy::PolicyKind;
use forebay_tests::raw::Raw;
use forebay_tests::{Answer, Client, Site, run, site};

const PAGE: &str = "https://app.example";
const WHOLE: &[u8] = br#"{"prompt":"a","max_tokens":2}"#;

/// What the command line makes of these origins.
fn cors(origins: &str) -> Option<Cors> {
    let arguments = format!("forebay --cors-allowed-origins {origins}");
    let arguments = arguments.split_whitespace().map(Into::into);
    let Ok(Command::Serve(read)) = command::parse(arguments, |_| None) else { panic!("{origins}") };
    read.cors
}

async fn site_for(origins: &str) -> Site {
    Site::start_with(site::workers(1), PolicyKind::RoundRobin, |settings| settings.cors = cors(origins)).await
}

async fn preflight(url: &str, path: &str, origin: &str) -> Answer {
    let headers = [
        ("origin", origin),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "content-type, x-session-id"),
    ];
    Client::connect(url).await.ask("OPTIONS", path, &headers, b"").await
}

fn allowed(answer: &Answer) -> Option<String> {
    answer.head.text("access-control-allow-origin")
}

#[test]
fn a_preflight_is_answered_on_every_path_and_changes_nothing() {
    run(async {
        let site = site_for(&format!("{PAGE} http://localhost:5173")).await;
        for url in [site.app.url(), site.app.admin_url()] {
            for path in [
                "/v1/chat/completions",
                "/v1/new",
                "/tokenize",
                "/sleep",
                "/v1/models",
                "/admin/reset",
                "/nothing",
            ] {
                let answer = preflight(&url, path, PAGE).await;
                assert_eq!(answer.status(), 204, "{path}");
                assert_eq!(allowed(&answer).as_deref(), Some(PAGE), "{path}");
                assert!(answer.header("access-control-allow-methods").contains("POST"), "{path}");
                assert_eq!(answer.header("access-control-allow-headers"), "content-type, x-session-id");
                assert!(answer.head.all("vary").contains(&"origin".to_owned()), "{path}");
            }
        }
        let stranger = preflight(&site.app.url(), "/v1/models", "https://evil.example").await;
        assert_eq!((stranger.status(), allowed(&stranger)), (204, None));
        assert_eq!(site.epoch(), 1);
        assert!(site.workers[0].requests().iter().all(|request| request.method == "GET"));
    });
}

#[test]
fn pages_of_named_origins_may_read_answers_and_others_may_not() {
    run(async {
        let site = site_for(PAGE).await;
        let mut client = site.client().await;
        for (path, status) in [("/v1/completions", 200), ("/v1/nothing/at/all", 404), ("/sleep", 403)] {
            let answer = client.ask("POST", path, &[("origin", PAGE)], WHOLE).await;
            assert_eq!((answer.status(), allowed(&answer).as_deref()), (status, Some(PAGE)), "{path}");
            assert!(answer.header("access-control-expose-headers").contains("x-request-id"));
        }
        let stranger =
            client.ask("POST", "/v1/completions", &[("origin", "https://evil.example")], WHOLE).await;
        assert_eq!((stranger.status(), allowed(&stranger)), (200, None));
        let none = client.post("/v1/completions", WHOLE).await;
        assert_eq!((none.status(), allowed(&none)), (200, None));
        let any = site_for("*").await;
        let answer = any.client().await.ask("POST", "/v1/completions", &[("origin", PAGE)], WHOLE).await;
        assert_eq!((answer.status(), allowed(&answer).as_deref()), (200, Some("*")));
        assert!(answer.head.text("vary").is_none());
    });
}

#[test]
fn nothing_is_said_of_it_unless_an_origin_is_named() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let answer = site.client().await.ask("POST", "/v1/completions", &[("origin", PAGE)], WHOLE).await;
        assert_eq!((answer.status(), allowed(&answer)), (200, None));
        let answer = preflight(&site.app.url(), "/tokenize", PAGE).await;
        assert_eq!(allowed(&answer), None);
    });
}

#[test]
fn what_a_worker_says_of_it_does_not_count() {
    run(async {
        let mut raw = Raw::start().await;
        let mut settings = site::settings(PolicyKind::RoundRobin, &[raw.url()]);
        settings.cors = cors(PAGE);
        let site = Site { app: site::start(&settings).await, workers: Vec::new() };
        for (origin, allows) in [("https://evil.example", None), (PAGE, Some(PAGE))] {
            let mut client = site.client().await;
            let headers = [("origin", origin)];
            client.send(&forebay_tests::request("POST", "/v1/completions", &headers, WHOLE)).await;
            let said = "access-control-allow-origin: *\r\naccess-control-allow-credentials: true\r\n";
            raw.next().await.send(format!("HTTP/1.1 200 OK\r\n{said}content-length: 2\r\n\r\n{{}}")).await;
            let answer = client.answer().await.unwrap();
            assert_eq!(allowed(&answer).as_deref(), allows);
            assert_eq!(answer.head.all("access-control-allow-origin").len(), usize::from(allows.is_some()));
            assert_eq!(answer.head.text("access-control-allow-credentials"), None);
        }
    });
}

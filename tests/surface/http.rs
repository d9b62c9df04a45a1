//! HTTP as clients and workers may speak it: HTTP/2 from the first byte, methods, bodies that end in odd ways, and workers
//! behind sockets, TLS, IPv6 and prefixes.

use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use forebay_dial::Dialer;
use forebay_policy::PolicyKind;
use forebay_tests::client::{chunked, request};
use forebay_tests::raw::Raw;
use forebay_tests::site::{by, settings, start};
use forebay_tests::{Client, Site, run, until};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixListener};
use tokio::task::JoinSet;

const BODY: &str = r#"{"prompt":"x","max_tokens":2}"#;

/// A client that begins with HTTP/2.
struct Http2 {
    sender: SendRequest<Full<Bytes>>,
    _connection: JoinSet<()>,
}

impl Http2 {
    async fn connect(url: &str) -> Self {
        let stream = TcpStream::connect(url.trim_start_matches("http://")).await.unwrap();
        let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (sender, connection) = handshake.await.unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { drop(connection.await) });
        Self { sender, _connection: tasks }
    }

    fn request(path: &str, body: &str) -> http::Request<Full<Bytes>> {
        let request =
            http::Request::post(format!("http://localhost{path}")).header("content-type", "application/json");
        request.body(Full::from(body.to_owned())).unwrap()
    }

    async fn post(&self, path: &str, body: &str) -> (u16, http::HeaderMap, String) {
        let answer = self.sender.clone().send_request(Self::request(path, body)).await.unwrap();
        let (head, body) = answer.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (head.status.as_u16(), head.headers, String::from_utf8_lossy(&body).into_owned())
    }
}

#[test]
fn a_client_that_begins_with_http_2_is_served_like_any_other() {
    run(async {
        let site = Site::start(2, PolicyKind::RoundRobin).await;
        let client = Http2::connect(&site.app.url()).await;
        let stream = r#"{"prompt":"x","max_tokens":5,"stream":true}"#;
        for _ in 0..10 {
            let (status, headers, text) = client.post("/v1/completions?a=b", BODY).await;
            assert_eq!((status, headers["x-sim-worker"].to_str().unwrap()), (200, "w0"), "{text}");
            let (status, _, text) = client.post("/v1/completions", stream).await;
            assert_eq!(status, 200);
            assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
        }
        let (status, headers, _) = client.post("/v1/nothing\u{2f}..", "").await;
        assert!(status == 404 && headers.contains_key("x-request-id"));
        let recorded = site.workers[0].requests_to("/v1/completions").remove(0);
        assert_eq!((recorded.target.as_str(), recorded.text().as_str()), ("/v1/completions?a=b", BODY));
        // The admin right of this machine holds here too.
        assert_eq!(client.post("/reset_prefix_cache", "").await.0, 200);
        // Many at once on one connection.
        let mut all = JoinSet::new();
        for _ in 0..200 {
            let mut sender = client.sender.clone();
            all.spawn(async move {
                let answer = sender.send_request(Http2::request("/v1/completions", BODY)).await.unwrap();
                answer.into_body().collect().await.unwrap().to_bytes().len()
            });
        }
        assert!(all.join_all().await.iter().all(|length| *length > 100));
        site.quiet().await;
    });
}

#[test]
fn a_stream_of_http_2_that_is_reset_takes_the_workers_request_with_it() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let gate = site.workers[0].hold(forebay_sim::Stage::AfterChunks(1));
        let client = Http2::connect(&site.app.url()).await;
        let stream = r#"{"prompt":"x","max_tokens":50,"stream":true}"#;
        let answer =
            client.sender.clone().send_request(Http2::request("/v1/completions", stream)).await.unwrap();
        gate.wait_held(1).await;
        assert_eq!(site.in_flight(0), 1);
        drop(answer);
        site.workers[0].wait_until(|stats| stats.aborted == 1).await;
        until("no load", || site.in_flight(0) == 0).await;
        // The connection goes on.
        drop(gate);
        assert_eq!(client.post("/v1/completions", BODY).await.0, 200);
    });
}

#[test]
fn a_shutdown_lets_streams_of_http_2_end() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let gate = site.workers[0].hold(forebay_sim::Stage::AfterChunks(1));
        let client = Http2::connect(&site.app.url()).await;
        let stream = r#"{"prompt":"x","max_tokens":5,"stream":true}"#;
        let asking = client.post("/v1/completions", stream);
        let ending = async {
            gate.wait_held(1).await;
            let Site { app, workers } = site;
            let shutdown = app.shutdown();
            gate.release();
            shutdown.await;
            workers
        };
        let ((status, _, text), _workers) = tokio::join!(asking, ending);
        assert!(status == 200 && text.ends_with("data: [DONE]\n\n"), "{text}");
    });
}

#[test]
fn what_only_begins_like_http_2_is_refused() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        for bytes in [
            &b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n"[..],
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\ngarbage and more of it",
        ] {
            let mut client = site.client().await;
            client.send(bytes).await;
            let _refused = client.rest().await;
        }
        assert_eq!(site.client().await.post("/v1/completions", BODY).await.status(), 200);
    });
}

#[test]
fn methods_that_only_look_are_answered() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let mut client = site.client().await;
        let head = client.ask("HEAD", "/v1/models", &[], b"").await;
        let whole = client.get("/v1/models").await;
        assert_eq!((head.status(), head.header("content-length")), (200, whole.body.len().to_string()));
        for (path, allow) in [
            ("/v1/chat/completions", "POST, OPTIONS"),
            ("/v1/models", "GET, HEAD, OPTIONS"),
            ("/tokenize", "POST, OPTIONS"),
        ] {
            let options = client.ask("OPTIONS", path, &[], b"").await;
            assert_eq!((options.status(), options.header("allow").as_str()), (204, allow), "{path}");
        }
        // What nobody knows here is asked of a worker.
        assert_eq!(client.ask("HEAD", "/v1/newer", &[], b"").await.status(), 404);
        assert_eq!(site.workers[0].requests_to("/v1/newer").len(), 1);
    });
}

#[test]
fn trailers_are_read_over_on_both_sides() {
    run(async {
        let mut raw = Raw::start().await;
        let site =
            Site { app: start(&settings(PolicyKind::RoundRobin, &[raw.url()])).await, workers: Vec::new() };
        let mut client = site.client().await;
        for _ in 0..2 {
            let bytes =
                chunked("/v1/completions", &[("trailer", "x-after"), ("te", "trailers")], BODY.as_bytes(), 7);
            let end = bytes.len() - 2;
            client.send(&[&bytes[..end], b"x-after: 1\r\n\r\n"].concat()).await;
            let mut taken = raw.next().await;
            assert!(taken.read(BODY.len()).await == BODY.as_bytes() && !taken.head.contains("x-after"));
            taken
                .send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-end\r\n\r\n2\r\nok\r\n0\r\nx-end: 1\r\n\r\n")
                .await;
            assert_eq!(client.answer().await.unwrap().text(), "ok");
        }
    });
}

#[test]
fn whoever_says_close_is_heard() {
    run(async {
        let mut raw = Raw::start().await;
        let site =
            Site { app: start(&settings(PolicyKind::RoundRobin, &[raw.url()])).await, workers: Vec::new() };
        let mut client = site.client().await;
        client.send(&request("POST", "/v1/completions", &[("connection", "close")], BODY.as_bytes())).await;
        raw.next().await.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
        assert_eq!(client.answer().await.unwrap().header("connection"), "close");
        assert!(client.rest().await.is_empty());
        // The worker's word is for its own connection.
        let mut client = site.client().await;
        for _ in 0..2 {
            client.send(&request("POST", "/v1/completions", &[], BODY.as_bytes())).await;
            raw.next().await.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
            assert_eq!(client.answer().await.unwrap().header("connection"), "");
        }
    });
}

/// Carries bytes between whoever connects to `listener` and this address.
async fn carry<S: AsyncReadExt + AsyncWriteExt + Unpin>(mut from: S, to: String) {
    let mut stream = TcpStream::connect(to.trim_start_matches("http://")).await.unwrap();
    let _ended = tokio::io::copy_bidirectional(&mut from, &mut stream).await;
}

#[test]
fn a_worker_is_reached_through_a_unix_socket() {
    run(async {
        let workers = forebay_tests::site::workers(1);
        let dir = std::env::temp_dir().join(format!("forebay-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("worker.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let to = workers[0].url();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                open.spawn(carry(stream, to.clone()));
            }
        });
        let app = start(&settings(PolicyKind::RoundRobin, &[format!("unix:{}", path.display())])).await;
        let site = Site { app, workers };
        let mut client = site.client().await;
        for _ in 0..3 {
            assert_eq!(by(&client.post("/v1/completions", BODY).await), "w0");
        }
        assert_eq!(site.workers[0].requests_to("/v1/completions")[0].header("host"), Some("localhost"));
        assert_eq!(client.get("/v1/models").await.json()["data"][0]["id"], "tiny");
        std::fs::remove_dir_all(&dir).unwrap();
    });
}

#[test]
fn a_worker_is_reached_at_an_ipv6_address_and_below_a_prefix() {
    run(async {
        let mut raw = Raw::start_at("[::1]:0").await;
        let url = format!("{}/deep/er", raw.url());
        let site = Site { app: start(&settings(PolicyKind::RoundRobin, &[url])).await, workers: Vec::new() };
        let mut client = site.client().await;
        client.send(&request("POST", "/v1/completions?a=b", &[], BODY.as_bytes())).await;
        let mut taken = raw.next().await;
        assert!(taken.head.starts_with("POST /deep/er/v1/completions?a=b HTTP/1.1\r\n"), "{}", taken.head);
        assert!(taken.header("host").starts_with("[::1]:"));
        taken.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
        assert_eq!(client.answer().await.unwrap().status(), 200);
    });
}

#[test]
fn clients_come_by_ipv6_too() {
    run(async {
        let workers = forebay_tests::site::workers(1);
        let mut settings = settings(PolicyKind::RoundRobin, &[workers[0].url()]);
        settings.listen.host = "::1".parse().unwrap();
        let site = Site { app: start(&settings).await, workers };
        assert_eq!(by(&Client::connect(&site.app.url()).await.post("/v1/completions", BODY).await), "w0");
    });
}

#[test]
fn a_worker_behind_tls_is_believed_if_its_certificate_is() {
    run(async {
        let workers = forebay_tests::site::workers(1);
        let dir = std::env::temp_dir().join(format!("forebay-tls-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (key, certificate) = (dir.join("key.pem"), dir.join("cert.pem"));
        let made = Command::new("openssl")
            .args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-days",
                "2",
            ])
            .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
            .args(["-addext", "basicConstraints=critical,CA:FALSE", "-addext", "extendedKeyUsage=serverAuth"])
            .args(["-keyout".as_ref(), key.as_os_str(), "-out".as_ref(), certificate.as_os_str()])
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        let (url, _door) = tls_door(&key, &certificate, workers[0].url()).await;
        let mut believing = settings(PolicyKind::RoundRobin, std::slice::from_ref(&url));
        believing.router.dialer = Dialer::with_ca_file(&certificate).unwrap();
        let site = Site { app: start(&believing).await, workers };
        let mut client = site.client().await;
        let long = format!(r#"{{"prompt":"{}","max_tokens":2}}"#, "x".repeat(3_000_000));
        for body in [BODY, &long, BODY] {
            assert_eq!(by(&client.post("/v1/completions", body).await), "w0");
            assert_eq!(site.workers[0].requests_to("/v1/completions").pop().unwrap().text(), body);
        }
        let stream = r#"{"prompt":"x","max_tokens":5,"stream":true}"#;
        assert!(client.post("/v1/completions", stream).await.text().ends_with("data: [DONE]\n\n"));
        // Without it nobody knows who that is.
        let doubting = Dialer::default().open(&url.parse().unwrap(), Duration::from_secs(10)).await;
        let why = doubting.err().expect("it is not believed").to_string();
        assert!(why.contains("certificate"), "{why}");
        std::fs::remove_dir_all(&dir).unwrap();
    });
}

/// Takes TLS from whoever connects, and hands it on to this address.
async fn tls_door(key: &std::path::Path, certificate: &std::path::Path, to: String) -> (String, JoinSet<()>) {
    use tokio_rustls::rustls::pki_types::pem::PemObject;
    use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let chain = vec![CertificateDer::from_pem_file(certificate).unwrap()];
    let key = PrivateKeyDer::from_pem_file(key).unwrap();
    let provider = tokio_rustls::rustls::crypto::ring::default_provider();
    let config = tokio_rustls::rustls::ServerConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut open = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, to) = (acceptor.clone(), to.clone());
            open.spawn(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    carry(stream, to).await;
                }
            });
        }
    });
    (url, tasks)
}

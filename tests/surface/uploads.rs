//! Forms with files go on while they come, to a worker of the model that they name.

use std::time::Duration;

use forebay::settings::Settings;
use forebay_policy::PolicyKind;
use forebay_sim::WorkerOptions;
use forebay_tests::raw::Raw;
use forebay_tests::site::{by, settings, start, worker};
use forebay_tests::{Client, Site, run, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

const PATH: &str = "/v1/audio/transcriptions";
const KIND: &str = "content-type: multipart/form-data; boundary=b\r\n";

/// A form of these parts; a part named `file` is one.
fn form(parts: &[(&str, &[u8])]) -> Vec<u8> {
    let mut form = Vec::new();
    for (name, value) in parts {
        let file = if *name == "file" { "; filename=\"a.wav\"\r\nContent-Type: audio/wav" } else { "" };
        let head = format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n");
        form.extend_from_slice(head.as_bytes());
        form.extend_from_slice(value);
        form.extend_from_slice(b"\r\n");
    }
    form.extend_from_slice(b"--b--\r\n");
    form
}

fn head(length: usize) -> String {
    format!("POST {PATH} HTTP/1.1\r\nhost: h\r\n{KIND}content-length: {length}\r\n\r\n")
}

fn chunked(form: &[u8], size: usize) -> Vec<u8> {
    let mut bytes =
        format!("POST {PATH} HTTP/1.1\r\nhost: h\r\n{KIND}transfer-encoding: chunked\r\n\r\n").into_bytes();
    for chunk in form.chunks(size) {
        bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        bytes.extend_from_slice(chunk);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
    bytes
}

async fn behind(raw: &[&Raw], change: impl FnOnce(&mut Settings)) -> Site {
    let urls: Vec<String> = raw.iter().map(|raw| raw.url()).collect();
    let mut settings = settings(PolicyKind::RoundRobin, &urls);
    change(&mut settings);
    Site { app: start(&settings).await, workers: Vec::new() }
}

fn load(site: &Site) -> u64 {
    (0..site.app.reader().world().hosts().len()).map(|host| site.in_flight(host)).sum()
}

#[test]
fn the_model_of_a_form_chooses_the_worker_wherever_its_part_stands_and_every_byte_arrives() {
    run(async {
        let model = |name: &str| {
            let options = WorkerOptions::recording().named(name);
            worker(WorkerOptions { model: name.to_owned(), root: format!("models/{name}"), ..options })
        };
        let site =
            Site::start_with(vec![model("large"), model("small")], PolicyKind::RoundRobin, |_| ()).await;
        let audio: Vec<u8> = (0..300_000_u32).map(|i| (i % 251) as u8).collect();
        let mut client = site.client().await;
        for (at, name) in [(0, "large"), (1, "small")].into_iter().cycle().take(6) {
            let (model, file, stream): ((&str, &[u8]), _, _) =
                (("model", name.as_bytes()), ("file", &audio[..]), ("stream", &b"true"[..]));
            for parts in [[model, file, stream], [file, stream, model]] {
                let form = form(&parts);
                for bytes in [[head(form.len()).as_bytes(), &form].concat(), chunked(&form, 5000)] {
                    client.send(&bytes).await;
                    let answer = client.answer().await.unwrap();
                    assert_eq!((by(&answer), answer.status()), (name.to_owned(), 200));
                    assert!(answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
                    let recorded = site.workers[at].requests_to(PATH).pop().unwrap();
                    assert_eq!(recorded.body, form);
                    assert_eq!(recorded.header("content-type"), Some("multipart/form-data; boundary=b"));
                }
            }
        }
        // Of several base models one has to be named.
        let nameless = form(&[("file", b"x")]);
        client.send(&[head(nameless.len()).as_bytes(), &nameless].concat()).await;
        assert_eq!(client.answer().await.unwrap().header("x-forebay-failure"), "router_model_needed");
        let unknown = form(&[("model", b"none"), ("file", b"x")]);
        client.send(&[head(unknown.len()).as_bytes(), &unknown].concat()).await;
        assert_eq!(client.answer().await.unwrap().status(), 404);
        site.quiet().await;
    });
}

#[test]
fn what_has_come_is_with_the_worker_before_the_rest_has() {
    run(async {
        let mut raw = Raw::start().await;
        let site = behind(&[&raw], |_| ()).await;
        let form = form(&[("model", b"m"), ("file", &[b'x'; 200_000])]);
        let mut client = site.client().await;
        client.send(&[head(form.len()).as_bytes(), &form[..1000]].concat()).await;
        let mut taken = raw.next().await;
        assert_eq!(taken.header("content-length"), form.len().to_string());
        assert_eq!(taken.read(1000).await, &form[..1000]);
        assert_eq!(site.in_flight(0), 1);
        client.send(&form[1000..]).await;
        assert!(taken.read(form.len()).await == form);
        taken.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await;
        assert_eq!(client.answer().await.unwrap().text(), "{}");
        until("no load", || load(&site) == 0).await;
    });
}

#[test]
fn a_client_that_waits_for_continue_is_asked_for_its_form() {
    run(async {
        let mut raw = Raw::start().await;
        let site = behind(&[&raw], |_| ()).await;
        let form = form(&[("model", b"m"), ("file", b"abc")]);
        let mut client = site.client().await;
        let head = head(form.len()).replace("host: h", "host: h\r\nexpect: 100-continue");
        client.send(head.as_bytes()).await;
        assert_eq!(client.head().await.unwrap().status, 100);
        client.send(&form).await;
        let mut taken = raw.next().await;
        assert!(taken.read(form.len()).await == form && taken.header("expect").is_empty());
        taken.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
        assert_eq!(client.answer().await.unwrap().status(), 200);
    });
}

#[test]
fn another_worker_gets_it_while_all_that_was_sent_is_held_and_no_longer() {
    run(async {
        let (mut one, mut two) = (Raw::start().await, Raw::start().await);
        let site = behind(&[&one, &two], |_| ()).await;
        let mut client = site.client().await;
        let short = form(&[("model", b"m"), ("file", &[b'x'; 500_000])]);
        client.send(&[head(short.len()).as_bytes(), &short].concat()).await;
        let mut first = one.next().await;
        first.read(short.len()).await;
        drop(first);
        let mut second = two.next().await;
        assert!(second.read(short.len()).await == short);
        second.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
        assert_eq!(client.answer().await.unwrap().status(), 200);

        // Round robin goes on with the first, or the second: whoever gets it.
        let long = form(&[("model", b"m"), ("file", &[b'x'; 3_000_000])]);
        client.send(&[head(long.len()).as_bytes(), &long].concat()).await;
        let mut taken = tokio::select! { taken = one.next() => taken, taken = two.next() => taken };
        taken.read(long.len()).await;
        drop(taken);
        let answer = client.answer().await.unwrap();
        assert_eq!(answer.header("x-forebay-failure"), "worker_died_before_headers", "{}", answer.text());
        assert!(one.is_idle() && two.is_idle(), "nobody else was asked");
        until("no load", || load(&site) == 0).await;
    });
}

#[test]
fn an_answer_before_the_form_has_been_read_reaches_the_client() {
    run(async {
        let mut raw = Raw::start().await;
        let site = behind(&[&raw], |_| ()).await;
        let mut client = site.client().await;
        client.send(&[head(50_000_000).as_bytes(), &form(&[("model", b"m")])[..60]].concat()).await;
        let mut taken = raw.next().await;
        taken.send("HTTP/1.1 413 Too Large\r\ncontent-length: 5\r\n\r\nlarge").await;
        let answer = client.answer().await.unwrap();
        assert_eq!((answer.status(), answer.text().as_str()), (413, "large"));
        assert_eq!(answer.header("connection"), "close");
        taken.rest().await;
        until("no load", || load(&site) == 0).await;
    });
}

#[test]
fn a_worker_that_takes_in_no_more_of_a_form_is_given_up() {
    run(async {
        let mut raw = Raw::start().await;
        let limit = Duration::from_millis(200);
        let site = behind(&[&raw], |settings| settings.router.times.response_header = Some(limit)).await;
        let stream = TcpStream::connect(site.app.url().trim_start_matches("http://")).await.unwrap();
        let (mut answer, mut client) = stream.into_split();
        client.write_all(head(200_000_000).as_bytes()).await.unwrap();
        client.write_all(&form(&[("model", b"m")])[..60]).await.unwrap();
        let mut taken = raw.next().await;
        // From here on it does not read.
        let mut sending = JoinSet::new();
        sending.spawn(async move { while client.write_all(&[b'x'; 65536]).await.is_ok() {} });
        let mut told = [0; 12];
        answer.read_exact(&mut told).await.unwrap();
        assert_eq!(&told, b"HTTP/1.1 504");
        taken.rest().await;
        until("no load", || load(&site) == 0).await;
    });
}

#[test]
fn a_client_that_leaves_inside_its_form_takes_the_workers_connection_with_it() {
    run(async {
        let mut raw = Raw::start().await;
        let site = behind(&[&raw], |_| ()).await;
        let mut client = site.client().await;
        client.send(&[head(1_000_000).as_bytes(), &form(&[("model", b"m")])[..60]].concat()).await;
        let mut taken = raw.next().await;
        taken.read(60).await;
        drop(client);
        assert_eq!(taken.rest().await.len(), 60);
        until("no load", || load(&site) == 0).await;
        assert_eq!(site.metric("forebay_breaker_transitions_total", &["to=\"open\""]).await, 0);
    });
}

#[test]
fn a_form_beyond_the_limit_is_refused_whether_its_length_was_told_or_not() {
    run(async {
        let raw = Raw::start().await;
        let site = behind(&[&raw], |settings| settings.router.max_payload_bytes = 100_000).await;
        let form = form(&[("model", b"m"), ("file", &[b'x'; 200_000])]);
        for bytes in [[head(form.len()).as_bytes(), &form].concat(), chunked(&form, 7000)] {
            let mut client: Client = site.client().await;
            client.send(&bytes).await;
            assert_eq!(client.answer().await.unwrap().header("x-forebay-failure"), "router_body_too_large");
        }
        until("no load", || load(&site) == 0).await;
    });
}

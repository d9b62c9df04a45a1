//! Clients of HTTP/2 that fall silent, and requests of one connection that are in each other's way.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use forebay_policy::PolicyKind;
use forebay_tests::raw::Raw;
use forebay_tests::{Site, run, site, until};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Body, Frame};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::still_serves;

/// What a client says first, with no settings of its own.
const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

#[test]
fn a_client_that_falls_silent_is_not_waited_for() {
    run(async {
        let site = Site::start_with(site::workers(1), PolicyKind::RoundRobin, |settings| {
            settings.client_idle = Duration::from_millis(20);
        })
        .await;
        let mut client = site.client().await;
        client.send(HELLO).await;
        // It is told of the end, does not say that it has heard, and the connection ends all the same.
        assert!(!client.rest().await.is_empty());
        still_serves(&site).await;
    });
}

#[test]
fn a_client_that_falls_silent_does_not_keep_the_process_from_ending() {
    run(async {
        let site = Site::start(1, PolicyKind::RoundRobin).await;
        let mut client = TcpStream::connect(site.app.url().trim_start_matches("http://")).await.unwrap();
        client.write_all(HELLO).await.unwrap();
        assert!(client.read(&mut [0; 9]).await.unwrap() > 0, "it speaks HTTP/2 now");
        let Site { app, workers: _workers } = site;
        app.shutdown().await;
    });
}

/// A body of which the rest comes when that is told.
struct Slow {
    begin: Option<Bytes>,
    told: oneshot::Receiver<()>,
    rest: Option<Bytes>,
}

impl Body for Slow {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(begin) = self.begin.take() {
            return Poll::Ready(Some(Ok(Frame::data(begin))));
        }
        if self.rest.is_some() {
            let _told = ready!(Pin::new(&mut self.told).poll(cx));
        }
        Poll::Ready(self.rest.take().map(|rest| Ok(Frame::data(rest))))
    }
}

#[test]
fn requests_that_wait_for_a_place_do_not_stop_the_one_that_has_it() {
    run(async {
        let site = Site::start_with(site::workers(1), PolicyKind::RoundRobin, |settings| {
            settings.router.admission.concurrent = Some(1);
            settings.router.admission.queue_timeout = Duration::from_secs(5);
        })
        .await;
        let stream = TcpStream::connect(site.app.url().trim_start_matches("http://")).await.unwrap();
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { drop(connection.await) });
        let text = "x".repeat(3 * 1024 * 1024);
        let (mut asking, mut gates) = (JoinSet::new(), Vec::new());
        for _ in 0..6 {
            let (gate, told) = oneshot::channel();
            gates.push(gate);
            let rest = Some(Bytes::from(format!(r#"{text}","max_tokens":1}}"#)));
            let body = Slow { begin: Some(Bytes::from_static(b"{\"prompt\":\"")), told, rest };
            let request = http::Request::post("http://localhost/v1/completions");
            let request = request.header("content-type", "application/json").body(body).unwrap();
            let mut sender = sender.clone();
            sender.ready().await.unwrap();
            let answered = sender.send_request(request);
            asking.spawn(async move {
                let answer = answered.await.unwrap();
                let status = answer.status().as_u16();
                drop(answer.into_body().collect().await.unwrap());
                status
            });
        }
        // Five wait behind the first, and say all that they may.
        while site.metric("forebay_requests_queued", &[]).await < 5 {}
        let first = gates.remove(0);
        gates.into_iter().for_each(|gate| gate.send(()).unwrap());
        // Whatever the first says from now on comes behind that.
        let _settled = site.client().await.get("/health").await;
        first.send(()).unwrap();
        assert_eq!(asking.join_all().await, [200; 6]);
        site.quiet().await;
    });
}

#[test]
fn a_client_that_takes_nothing_in_gets_no_more_time_than_others() {
    run(async {
        let mut raw = Raw::start().await;
        let mut settings = site::settings(PolicyKind::RoundRobin, &[raw.url()]);
        settings.router.times.request = Some(Duration::from_millis(50));
        let site = Site { app: site::start(&settings).await, workers: Vec::new() };
        let stream = TcpStream::connect(site.app.url().trim_start_matches("http://")).await.unwrap();
        let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        let (mut sender, connection) =
            builder.initial_stream_window_size(0).handshake(TokioIo::new(stream)).await.unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { drop(connection.await) });
        let request = http::Request::get("http://localhost/v1/anything").body(Empty::<Bytes>::new()).unwrap();
        let asking = sender.send_request(request);
        let answering = async {
            let mut taken = raw.next().await;
            taken.send("HTTP/1.1 200 OK\r\n\r\n").await;
            while taken.stream.write_all(&[b'x'; 65536]).await.is_ok() {}
        };
        let (answer, ()) = tokio::join!(asking, answering);
        assert!(answer.unwrap().into_body().collect().await.is_err());
        until("no load", || site.in_flight(0) == 0).await;
    });
}

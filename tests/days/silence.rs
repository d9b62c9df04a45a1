//! A worker that is there and does not answer, or not in time.

use std::time::Duration;

use forebay_policy::PolicyKind;
use forebay_sim::Fault;
use forebay_tests::scripted::{Scripted, Then};
use forebay_tests::{Client, run, site};

use crate::day::{Day, STREAM, WHOLE, ends, saw};

const SHORT: Option<Duration> = Some(Duration::from_millis(100));

async fn limited(case: &'static str) -> Day {
    Day::of_one(case, |settings| {
        settings.router.times.response_header = SHORT;
        settings.router.times.stream_idle = SHORT;
    })
    .await
}

#[test]
fn it_accepts_and_never_answers() {
    run(async {
        let day = limited("accepts, reads and never answers").await;
        day.site.workers[0].fail_next(1, Fault::NeverAnswer);
        let seen = day.ask(WHOLE).await;
        assert_eq!(seen, "504 worker_timeout");
        day.ends("1 headers_timeout", &seen).await;

        let day = limited("the kernel accepts, the process does not").await;
        day.site.workers[0].pause_accept().await;
        let seen = day.ask(WHOLE).await;
        assert_eq!(seen, "504 worker_timeout");
        day.site.workers[0].accept().await;
        day.ends("1 headers_timeout", &seen).await;
    });
}

#[test]
fn it_answers_byte_by_byte() {
    run(async {
        let day = limited("one byte per second, head limited").await;
        day.site.workers[0].fail_next(1, Fault::ByteByByte(Duration::from_secs(1)));
        let seen = day.ask(STREAM).await;
        assert_eq!(seen, "504 worker_timeout");
        day.ends("1 headers_timeout", &seen).await;

        let day = Day::of_one("byte by byte, within the limits", |settings| {
            settings.router.times.stream_idle = Some(Duration::from_secs(5));
        })
        .await;
        day.site.workers[0].fail_next(1, Fault::ByteByByte(Duration::ZERO));
        let seen = day.ask(STREAM).await;
        assert_eq!(seen, "200 whole stream");
        day.ends("1 completed", &seen).await;
    });
}

#[test]
fn it_sends_a_head_and_nothing_more() {
    run(async {
        let day = limited("head, then nothing: stream").await;
        day.site.workers[0].fail_next(1, Fault::HeadThenSilence);
        let seen = day.ask(STREAM).await;
        assert_eq!(seen, "504 worker_timeout");
        day.ends("1 stalled", &seen).await;

        let day = limited("head, then nothing: whole answer").await;
        day.site.workers[0].fail_next(1, Fault::HeadThenSilence);
        let seen = day.ask(WHOLE).await;
        assert_eq!(seen, "200 cut");
        day.ends("1 stalled", &seen).await;

        let day = limited("stalls inside a stream").await;
        day.site.workers[0].fail_next(1, Fault::StallMidStream(3));
        let seen = day.ask(STREAM).await;
        assert_eq!(seen, "200 3 records, then worker_timeout");
        day.ends("1 stalled", &seen).await;
    });
}

#[test]
fn a_limit_on_all_of_it() {
    run(async {
        let day = Day::of_one("never answers, request limited in all", |settings| {
            settings.router.times.request = SHORT;
        })
        .await;
        day.site.workers[0].fail_next(1, Fault::NeverAnswer);
        let seen = day.ask(WHOLE).await;
        assert_eq!(seen, "504 worker_timeout");
        day.ends("1 request_timeout", &seen).await;
    });
}

#[test]
fn it_answers_nobody_who_wants_to_connect() {
    run(async {
        let limited = |urls: &[String]| {
            let mut settings = site::settings(PolicyKind::RoundRobin, urls);
            settings.router.times.connect = Duration::from_millis(200);
            // Probes find out as well, which is another story.
            settings.health.interval = Duration::from_secs(3600);
            settings
        };
        let mut silent = Scripted::start("", Then::Keep).await;
        let app = site::start(&limited(&[silent.url()])).await;
        silent.fall_silent().await;
        let seen = saw(&mut Client::connect(&app.url()).await, STREAM).await;
        assert_eq!(seen, "504 worker_timeout");
        ends(&app, "no answer to a connect, alone", "1 connect_timeout", &seen).await;

        let mut silent = Scripted::start("", Then::Keep).await;
        let other = Scripted::start("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", Then::Keep).await;
        let app = site::start(&limited(&[silent.url(), other.url()])).await;
        silent.fall_silent().await;
        let mut client = Client::connect(&app.url()).await;
        for _ in 0..4 {
            assert_eq!(saw(&mut client, WHOLE).await, "200 whole");
        }
        assert!(!app.reader().world().workers()[0].eligible(), "it has left with the first request");
        let case = "no answer to a connect, one of two";
        ends(&app, case, "4 completed", "200 whole, of the other worker").await;
    });
}

//! A worker that dies, at each stage of a request.

use std::time::Duration;

use forebay_sim::Fault;
use forebay_tests::run;

use crate::day::{Day, STREAM, WHOLE};

/// One worker alone meets the fault for a body; a connection that was used before is not there to be tried again.
async fn alone(case: &'static str, fault: Fault, body: &str, outcome: &str, saw: &str) {
    let day = Day::of_one(case, |_| ()).await;
    day.site.workers[0].fail_next(1, fault);
    let seen = day.ask(body).await;
    assert_eq!(seen, saw, "{case}");
    day.ends(&format!("1 {outcome}"), &seen).await;
}

/// The same with another worker to turn to: nobody notices.
async fn with_another(case: &'static str, fault: Fault) {
    let day = Day::of(case, 2, |_| ()).await;
    day.site.workers[0].fail_next(1, fault);
    for _ in 0..2 {
        assert_eq!(day.ask(STREAM).await, "200 whole stream", "{case}");
    }
    assert_eq!(day.site.metric("forebay_retries_total", &[]).await, 1, "{case}");
    day.ends("2 completed", "200 whole stream, of the other worker").await;
}

#[test]
fn before_it_is_connected_to() {
    run(async {
        // Refused by the kernel, which keeps the port: another test's router might get it.
        let day = Day::of_one("worker gone before connect, alone", |_| ()).await;
        day.site.workers[0].refuse_connections().await;
        let seen = day.ask(STREAM).await;
        assert_eq!(seen, "503 router_pool_exhausted");
        let day = day.ends("1 pool_exhausted", &seen).await;
        day.site.workers[0].accept().await;
        day.site.wait_eligible(0, true).await;
        assert_eq!(day.ask(STREAM).await, "200 whole stream");

        let day = Day::of("worker gone before connect, one of two", 2, |_| ()).await;
        day.site.workers[0].refuse_connections().await;
        for _ in 0..2 {
            assert_eq!(day.ask(STREAM).await, "200 whole stream");
        }
        day.ends("2 completed", "200 whole stream, of the other worker").await;
    });
}

#[test]
fn with_the_request_under_way() {
    run(async {
        let died = "502 worker_died_before_headers";
        let reset = "reset_before_headers";
        alone("killed after request bytes", Fault::CloseAfterRequestBytes(3), STREAM, reset, died).await;
        alone("killed before headers", Fault::CloseBeforeHead, STREAM, reset, died).await;
        alone("killed inside the head", Fault::CloseMidHead, STREAM, reset, died).await;
        alone("RST before headers", Fault::Reset, STREAM, reset, died).await;
        let early = Fault::CloseMidStream(0);
        alone("killed between head and first record", early.clone(), STREAM, reset, died).await;
        with_another("killed between head and first record, one of two", early).await;
        with_another("killed after request bytes, one of two", Fault::CloseAfterRequestBytes(3)).await;
        with_another("killed before headers, one of two", Fault::CloseBeforeHead).await;
        with_another("killed inside the head, one of two", Fault::CloseMidHead).await;
        with_another("RST before headers, one of two", Fault::Reset).await;
    });
}

#[test]
fn inside_a_stream() {
    run(async {
        let outcome = "reset_mid_stream";
        let told = "200 2 records, then worker_died_mid_stream";
        alone("killed between two records", Fault::CloseMidStream(2), STREAM, outcome, told).await;
        alone("killed inside a record", Fault::CloseMidRecord(2), STREAM, outcome, told).await;
        alone("RST inside a stream", Fault::ResetMidStream(2), STREAM, outcome, told).await;
        let late = "200 [DONE], then cut";
        alone("killed after [DONE]", Fault::CloseAfterDone, STREAM, outcome, late).await;
        alone("killed inside a whole answer", Fault::CloseMidStream(1), WHOLE, outcome, "200 cut").await;
        alone("RST inside a whole answer", Fault::ResetMidStream(1), WHOLE, outcome, "200 cut").await;
    });
}

#[test]
fn an_engine_that_dies_and_says_so() {
    run(async {
        let day = Day::of("engine dead: 500, then /health 503, one of two", 2, |settings| {
            // No probe but those that are asked for.
            settings.health.interval = Duration::from_secs(3600);
        })
        .await;
        day.site.workers[0].fail_next(1, Fault::EngineDead);
        for _ in 0..2 {
            assert_eq!(day.ask(WHOLE).await, "200 whole");
        }
        day.site.wait_eligible(0, false).await;
        let by = day.site.choices(4, |_| WHOLE.to_owned()).await;
        assert_eq!(by, ["w1"; 4]);
        day.ends("6 completed", "200 whole, of the other worker").await;
    });
}

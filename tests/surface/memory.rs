//! An upload through a worker that reads slowly waits with its client, not in the router's memory. `UPLOAD_MIB` says how
//! large it is.

use std::time::Duration;

use forebay_tests::raw::Raw;
use forebay_tests::{Client, Process, run_for};
use tokio::io::AsyncReadExt;

const FOREBAY: &str = env!("CARGO_BIN_EXE_forebay-process");
const MIB: u64 = 1024 * 1024;

/// What the router may grow by.
const GROWTH: u64 = 40 * MIB;

/// The worker's pace: one read of so many bytes in each tick of a millisecond.
const READ: usize = 64 * 1024;

fn size() -> u64 {
    let told = std::env::var("UPLOAD_MIB").ok().and_then(|text| text.parse().ok());
    told.unwrap_or(128_u64) * MIB
}

#[test]
fn a_large_upload_through_a_slow_worker_costs_little_memory() {
    run_for(Duration::from_secs(900), async {
        let mut raw = Raw::start().await;
        let flags = format!(
            "--port 0 --admin-port 0 --threads 1 --log-level error --max-payload-size {} --worker-urls {}",
            4096 * MIB,
            raw.url()
        );
        let mut router = Process::start(FOREBAY, &flags);
        let url = router.event("listening").await["url"].as_str().unwrap().to_owned();
        router.event("ready").await;
        let idle = router.resident();

        let form = b"--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n";
        let length = form.len() as u64 + size();
        let head = format!(
            "POST /v1/audio/transcriptions HTTP/1.1\r\nhost: h\r\ncontent-type: multipart/form-data; boundary=b\r\ncontent-length: {length}\r\n\r\n"
        );
        let sending = async {
            let mut client = Client::connect(&url).await;
            client.send(&[head.as_bytes(), form].concat()).await;
            let piece = vec![b'x'; MIB as usize];
            for _ in 0..size() / MIB {
                client.send(&piece).await;
            }
            client.answer().await.unwrap().status()
        };
        let reading = async {
            let mut taken = raw.next().await;
            let (mut read, mut most, mut piece) = (taken.came.len() as u64, 0, vec![0; READ]);
            let mut pace = tokio::time::interval(Duration::from_millis(1));
            while read < length {
                pace.tick().await;
                read += taken.stream.read(&mut piece).await.unwrap() as u64;
                most = most.max(router.resident());
            }
            taken.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
            most
        };
        let (status, most) = tokio::join!(sending, reading);
        let growth = most.saturating_sub(idle);
        println!(
            "upload of {} MiB: idle {} KiB, at most {} KiB more",
            size() / MIB,
            idle / 1024,
            growth / 1024
        );
        assert_eq!(status, 200);
        assert!(growth < GROWTH, "it grew by {} KiB", growth / 1024);
    });
}

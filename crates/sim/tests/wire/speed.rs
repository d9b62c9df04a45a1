//! How cheap an instant worker is. Run it by hand, in release mode: `cargo test --release -p forebay-sim -- --ignored --nocapture`.

use std::time::Instant;

use forebay_sim::{Worker, WorkerOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::post;

#[tokio::test]
#[ignore = "a measurement, not a check"]
async fn requests_per_second_of_one_instant_worker_and_its_client_on_one_thread() {
    const REQUESTS: usize = 50_000;
    const CLIENTS: usize = 8;
    for stream in [false, true] {
        let worker = Worker::start(WorkerOptions::instant(16)).unwrap();
        let body = format!(r#"{{"model":"tiny","stream":{stream},"prompt":"{}"}}"#, "x".repeat(2048));
        let request = post("/v1/completions", &body, "");
        let started = Instant::now();
        let mut clients = tokio::task::JoinSet::new();
        for _ in 0..CLIENTS {
            let (addr, request) = (worker.addr(), request.clone());
            clients.spawn(async move {
                let mut socket = TcpStream::connect(addr).await.unwrap();
                socket.set_nodelay(true).unwrap();
                let mut buf = vec![0; 64 << 10];
                let end: &[u8] = if stream { b"0\r\n\r\n" } else { b"\"metrics\":null}" };
                for _ in 0..REQUESTS / CLIENTS {
                    socket.write_all(request.as_bytes()).await.unwrap();
                    let mut read = 0;
                    while !buf[..read].ends_with(end) {
                        read += socket.read(&mut buf[read..]).await.unwrap();
                    }
                }
            });
        }
        clients.join_all().await;
        let rate = REQUESTS as f64 / started.elapsed().as_secs_f64();
        println!("stream: {stream}: {rate:.0} requests/s, client included");
    }
}

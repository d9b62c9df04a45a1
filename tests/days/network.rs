//! Names and ports: a name that moves to another address, a port that another program has taken.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use forebay_sim::{Worker, WorkerOptions};
use forebay_tests::scripted::{Scripted, Then};
use forebay_tests::{Client, Process, run};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::day::{Day, WHOLE, listed, outcomes, row, saw};

const FOREBAY: &str = env!("CARGO_BIN_EXE_forebay-process");

#[test]
fn another_program_takes_the_port() {
    run(async {
        let mut day = Day::of("port reused by another program, one of two", 2, |settings| {
            settings.health.failure_threshold = 1;
        })
        .await;
        let addr = day.site.workers[0].addr();
        day.site.workers.remove(0).stop().await;
        let listener = TcpListener::bind(addr).await.unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _gone = stream.write_all(b"SSH-2.0-OpenSSH_9.6\r\n\r\n").await;
            }
        });
        let (mut good, mut bad) = (0, 0);
        while day.site.app.reader().world().workers()[0].eligible() {
            match day.ask(WHOLE).await.as_str() {
                "200 whole" => good += 1,
                "502 worker_invalid_response" => bad += 1,
                other => panic!("{other}"),
            }
        }
        for _ in 0..4 {
            assert_eq!(day.ask(WHOLE).await, "200 whole", "it has left");
        }
        let mut wanted = format!("{} completed", good + 4);
        if bad > 0 {
            let _ = write!(wanted, ", {bad} invalid_response");
        }
        let seen = "502 worker_invalid_response until a probe has found out, then 200 of the other";
        day.ends(&wanted, seen).await;
    });
}

/// A name table of its own for one process.
struct Names(PathBuf);

impl Names {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("forebay-days-hosts-{}", std::process::id()));
        std::fs::write(&path, "127.0.0.1 worker.test\n").unwrap();
        Self(path)
    }

    /// Whether this machine lets a process have one.
    async fn are_allowed(&self) -> bool {
        let mut command = tokio::process::Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &self.then("true")]);
        command.output().await.is_ok_and(|output| output.status.success())
    }

    fn then(&self, command: &str) -> String {
        format!("mount --bind {} /etc/hosts && {command}", self.0.display())
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_name_changes_its_address() {
    run(async {
        let case = "DNS name that changes its address";
        let names = Names::new();
        if !names.are_allowed().await {
            return row(case, "not run", "this machine allows no name table for one process", "");
        }
        let first = Worker::start(WorkerOptions::recording().named("first")).unwrap();
        let port = first.addr().port();
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nsecond";
        let second = Scripted::start_at(([127, 0, 0, 2], port).into(), answer, Then::Keep).await;
        let serve = format!(
            "exec {FOREBAY} --port 0 --admin-port 0 --log-level error --policy round_robin \
             --health-check-interval-secs 1 --worker-urls http://worker.test:{port}"
        );
        let mut router = Process::start_with("unshare", "--user --map-root-user --mount sh -c", |command| {
            command.arg(names.then(&serve));
        });
        let listening = router.event("listening").await;
        router.event("ready").await;
        let url = listening["url"].as_str().unwrap().to_owned();
        assert_eq!(saw(&mut Client::connect(&url).await, WHOLE).await, "200 whole");
        assert_eq!(first.requests_to("/v1/completions").len(), 1);
        // In place: the process sees this file, not this name.
        std::fs::write(&names.0, "127.0.0.2 worker.test\n").unwrap();
        first.stop().await;
        let (mut well, mut asked) = (0, 1);
        while well < 3 {
            asked += 1;
            well += usize::from(saw(&mut Client::connect(&url).await, WHOLE).await == "200 whole");
            assert!(asked < 5000, "the new address is never asked");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(second.requests(), 3);
        let admin = listening["admin_url"].as_str().unwrap();
        let metrics = Client::connect(admin).await.get("/metrics").await.text();
        row(case, &listed(&outcomes(&metrics)), "200 whole, of the new address", "router 0");
    });
}

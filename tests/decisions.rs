//! The decision log of the real application under load, and its replay: each choice is made again, and a log that is not
//! whole says so.

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use forebay::command::{self, Command};
    use forebay::decisions::{DECISION_BUFFER_BYTES, DecisionLogSettings};
    use forebay::replay::{Replay, Report};
    use forebay::startup::StartupError;
    use forebay_policy::PolicyKind;
    use forebay_sim::WorkerOptions;
    use forebay_sim::engine::EngineOptions;
    use forebay_tests::{Client, Site, run, site};
    use serde_json::Value;
    use tokio::task::JoinSet;

    const CLIENTS: usize = 64;
    const REQUESTS: usize = 1500;

    /// A directory of one test, gone with it.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("forebay-decisions-{}-{name}", std::process::id()));
            fs::create_dir_all(&dir).unwrap();
            Self(dir)
        }

        fn file(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _left = fs::remove_dir_all(&self.0);
        }
    }

    async fn logged(policy: PolicyKind, file: &Path, buffer_bytes: usize) -> Site {
        let engine = EngineOptions {
            blocks: 400,
            block_tokens: 16,
            prefill_per_token: Duration::from_micros(2),
            decode_per_token: Duration::from_micros(200),
            max_concurrent: 256,
        };
        let workers = (0..4).map(|i| site::worker(WorkerOptions::engine(engine).named(format!("w{i}"))));
        Site::start_with(workers.collect(), policy, |settings| {
            (settings.seed, settings.threads) = (7, 2);
            settings.policy.cache.max_tree_size = 1 << 20;
            settings.decision_log = Some(DecisionLogSettings { file: file.to_owned(), buffer_bytes });
        })
        .await
    }

    /// Conversations that grow and share their beginning; some stream, and one in five is told apart by ids.
    fn body(number: usize) -> String {
        let (talk, turn) = (number % 37, number / 37 % 12);
        let said =
            format!("conversation {talk} goes on about rivers, weirs and forebays. ").repeat(6 * (turn + 1));
        let stream = if number.is_multiple_of(2) { r#","stream":true"# } else { "" };
        let prompt = match number % 5 {
            0 => format!("[{}]", vec![(100 + talk).to_string(); 40 * (turn + 1)].join(",")),
            _ => format!("\"You are a helpful assistant to whom much is explained at the start. {said}\""),
        };
        format!(r#"{{"prompt":{prompt},"max_tokens":3,"user":"u{talk}"{stream}}}"#)
    }

    /// Requests of many clients at once, as fast as they get answers.
    async fn load(site: &Site, clients: usize, requests: usize) {
        let next = Arc::new(AtomicUsize::new(0));
        let mut tasks = JoinSet::new();
        for _ in 0..clients {
            let (url, next) = (site.app.url(), Arc::clone(&next));
            tasks.spawn(async move {
                let mut client = Client::connect(&url).await;
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= requests {
                        return;
                    }
                    let answer = client.post("/v1/completions", body(number)).await;
                    assert_eq!(answer.status(), 200);
                }
            });
        }
        tasks.join_all().await;
    }

    fn replay(arguments: &[&str]) -> Result<Replay, StartupError> {
        let words = ["forebay", "replay"].iter().chain(arguments).map(Into::into);
        match command::parse(words, |_| None)? {
            Command::Replay(replay) => Ok(replay),
            _ => unreachable!("another command"),
        }
    }

    fn report(arguments: &[&str]) -> Report {
        replay(arguments).and_then(|replay| replay.report()).unwrap()
    }

    fn json(report: &Report) -> Value {
        serde_json::from_str(&report.json()).unwrap()
    }

    /// A log of many clients, with a worker that goes and comes back, and a reset with another seed in between.
    async fn eventful(policy: PolicyKind, file: &Path) {
        let site = logged(policy, file, DECISION_BUFFER_BYTES).await;
        load(&site, CLIENTS, REQUESTS / 3).await;
        site.workers[1].set_health(503);
        tokio::join!(load(&site, CLIENTS, REQUESTS / 3), site.wait_eligible(1, false));
        site.workers[1].set_health(200);
        let reset = async {
            let mut admin = site.admin().await;
            assert_eq!(admin.post("/admin/reset", r#"{"seed":11}"#).await.status(), 200);
        };
        tokio::join!(load(&site, CLIENTS, REQUESTS / 3), site.wait_eligible(1, true), reset);
        site.app.shutdown().await;
    }

    #[test]
    fn each_choice_of_sixty_four_clients_is_made_again_under_every_policy() {
        let scratch = Scratch::new("again");
        for policy in PolicyKind::ALL {
            let file = scratch.file(policy.as_str());
            run(eventful(policy, &file));
            let report = report(&[file.to_str().unwrap()]);
            let told = json(&report);
            assert_eq!(told["check"]["first_difference"], Value::Null, "{policy}: {}", report.text());
            assert!(told["check"]["recorded"].as_u64().unwrap() >= REQUESTS as u64);
            assert_eq!(told["check"]["recorded"], told["check"]["reproduced"], "{policy}");
            assert_eq!((&told["log"]["exact"], report.failure()), (&Value::Bool(true), None));
            let text = fs::read_to_string(&file).unwrap();
            for event in ["policy", "worker_added", "worker_probed", "forget", "reset", "capacity", "ended"] {
                assert!(text.contains(&format!("{{\"{event}\":")), "{policy}: no {event}");
            }
            assert!(!text.contains("rivers") && !text.contains("helpful"), "a prompt is in the log");
            assert_eq!(text.matches("{\"ended\":").count(), REQUESTS);
        }
    }
}

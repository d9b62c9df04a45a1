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
    use forebay::settings::Settings;
    use forebay::startup::StartupError;
    use forebay_discovery::RankCount;
    use forebay_policy::PolicyKind;
    use forebay_sim::WorkerOptions;
    use forebay_sim::engine::EngineOptions;
    use forebay_tests::{Client, Site, run, site};
    use forebay_workers::Ranks;
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
        logged_with(policy, file, |settings| {
            if let Some(log) = &mut settings.decision_log {
                log.buffer_bytes = buffer_bytes;
            }
        })
        .await
    }

    /// With other settings, and workers that have as many ranks as these say.
    async fn logged_with(policy: PolicyKind, file: &Path, change: impl Fn(&mut Settings)) -> Site {
        let engine = EngineOptions {
            blocks: 400,
            block_tokens: 16,
            prefill_per_token: Duration::from_micros(2),
            decode_per_token: Duration::from_micros(200),
            max_concurrent: 256,
        };
        let change = |settings: &mut Settings| {
            (settings.seed, settings.threads) = (7, 2);
            settings.policy.cache.max_tree_size = 1 << 20;
            let (file, buffer_bytes) = (file.to_owned(), DECISION_BUFFER_BYTES);
            settings.decision_log = Some(DecisionLogSettings { file, buffer_bytes });
            change(settings);
        };
        let mut settings = Settings::default();
        change(&mut settings);
        let ranks = match settings.ranks {
            RankCount::Given(ranks) => ranks.count(),
            RankCount::Asked => 1,
        };
        let options = |i| WorkerOptions::engine(engine).named(format!("w{i}")).with_ranks(ranks);
        let workers = (0..4).map(|i| site::worker(options(i))).collect();
        Site::start_with(workers, policy, change).await
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

    #[test]
    fn choices_among_ranks_that_step_together_are_made_again() {
        let scratch = Scratch::new("ranks");
        for policy in [PolicyKind::CacheAware, PolicyKind::PowerOfTwo, PolicyKind::LeastLoaded] {
            let file = scratch.file(policy.as_str());
            run(async {
                let ranked = |settings: &mut Settings| {
                    settings.ranks = RankCount::Given(Ranks::first(3).unwrap());
                    settings.policy.group_weight = 2.0;
                };
                let site = logged_with(policy, &file, ranked).await;
                load(&site, CLIENTS, REQUESTS / 3).await;
                site.app.shutdown().await;
            });
            let report = report(&[file.to_str().unwrap()]);
            let told = json(&report);
            assert_eq!(told["check"]["first_difference"], Value::Null, "{policy}: {}", report.text());
            assert_eq!(told["check"]["recorded"], told["check"]["reproduced"], "{policy}");
            let text = fs::read_to_string(&file).unwrap();
            assert!(text.contains("@2\"") && text.contains("\"group_weight\":2.0"), "{policy}");
        }
    }

    #[test]
    fn other_policies_are_compared_on_the_same_requests_and_always_alike() {
        let scratch = Scratch::new("alike");
        let file = scratch.file("log");
        run(async {
            let site = logged(PolicyKind::RoundRobin, &file, DECISION_BUFFER_BYTES).await;
            load(&site, 16, 600).await;
            site.app.shutdown().await;
        });
        let path = file.to_str().unwrap();
        let arguments = [path, "--policy", "round_robin,cache_aware", "--cache-tokens", "6400"];
        let first = report(&arguments);
        let told = json(&first);
        let columns = told["columns"].as_array().unwrap();
        let of = |column: usize, what: &str| columns[column][what].as_f64().unwrap();
        assert!(columns.iter().all(|column| column["requests"] == 600), "{}", first.text());
        assert_eq!(
            (&columns[1]["policy"], &columns[2]["policy"]),
            (&"round_robin".into(), &"cache_aware".into())
        );
        // Recorded by what the workers counted, simulated by the same engine: the two know nothing of each other.
        let (recorded, simulated) = (of(0, "hit_rate"), of(1, "hit_rate"));
        assert!((recorded - simulated).abs() < 0.1, "{}", first.text());
        assert!(of(2, "hit_rate") > simulated + 0.1, "{}", first.text());
        assert!(of(1, "spread") < 1.01 && of(0, "timed") == 300.0 && of(2, "timed") == 300.0);
        let again = report(&arguments);
        assert_eq!((first.json(), first.text()), (again.json(), again.text()));
    }

    #[test]
    fn a_log_that_could_not_keep_up_says_that_it_is_not_exact() {
        let scratch = Scratch::new("overflow");
        let file = scratch.file("log");
        run(async {
            let site = logged(PolicyKind::CacheAware, &file, 700).await;
            load(&site, CLIENTS, 400).await;
            assert!(site.metric("forebay_decision_log_dropped_total", &[]).await > 0);
            site.app.shutdown().await;
        });
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.trim_end().ends_with(r#""exact":false}}"#), "{:?}", text.lines().last());
        let report = report(&[file.to_str().unwrap()]);
        let told = json(&report);
        assert_eq!((&told["log"]["exact"], &told["log"]["ended"]), (&Value::Bool(false), &Value::Bool(true)));
        assert!(report.text().contains("exact:false") && told["log"]["missing"].as_u64() > Some(0));
        assert_eq!(report.failure(), None, "nobody can tell whether a choice would have come out the same");
    }

    /// A log of a few requests, as lines.
    fn lines(scratch: &Scratch) -> Vec<String> {
        let file = scratch.file("whole");
        run(async {
            let site = logged(PolicyKind::CacheAware, &file, DECISION_BUFFER_BYTES).await;
            load(&site, 1, 60).await;
            site.app.shutdown().await;
        });
        fs::read_to_string(&file).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_broken_log_is_refused_with_the_line_and_a_cut_one_is_read_up_to_the_cut() {
        let scratch = Scratch::new("broken");
        let whole = lines(&scratch);
        let file = scratch.file("log");
        let path = file.to_str().unwrap();
        let refused = |lines: &[String]| {
            fs::write(&file, lines.join("\n") + "\n").unwrap();
            replay(&[path]).unwrap().report().map(|_| ()).unwrap_err().to_string()
        };
        let changed = |at: usize, from: &str, to: &str| {
            let mut lines = whole.clone();
            assert!(lines[at].contains(from), "{}", lines[at]);
            lines[at] = lines[at].replacen(from, to, 1);
            lines
        };
        let choice = whole.iter().position(|line| line.contains("\"from\":")).unwrap();
        let policy = whole.iter().position(|line| line.starts_with("{\"policy\"")).unwrap();
        let place = |at: usize| format!("{path}:{}: ", at + 1);
        for (lines, at, problem) in [
            (changed(choice, "{", "{]"), choice, "at column"),
            (changed(choice, "\"new\":\"", "\"new\":\"x"), choice, "key.new is no list of hashes"),
            (changed(choice, "\"from\":", "\"from\":9999"), choice, "key.from refers to"),
            (changed(choice, "\"seq\":", "\"seq\":0,\"x\":"), choice, "seq is 0, and must be at least"),
            (changed(choice, "\"bytes\":", "\"bytes\":77"), choice, "key.bytes does not agree"),
            (changed(policy, "\"max_tree_size\":", "\"max_tree_size\":1,\"_\":"), policy, "unknown field"),
            (changed(policy, "1048576", "10485"), policy, "max_tree_size is 10485"),
            (changed(0, "\"format\":1", "\"format\":9"), 0, "format 9 is not known"),
            (whole[1..].to_vec(), 0, "a header is expected here"),
            ([&whole[..], &whole[1..2]].concat(), whole.len(), "nothing may follow the end"),
        ] {
            let error = refused(&lines);
            assert!(error.starts_with(&place(at)) && error.contains(problem), "{error} | {problem}");
        }
        let cut = whole[..whole.len() - 1].join("\n");
        fs::write(&file, &cut[..cut.len() - 7]).unwrap();
        let report = report(&[path]);
        let told = json(&report);
        assert_eq!((&told["log"]["cut"], &told["log"]["exact"]), (&Value::Bool(true), &Value::Bool(true)));
        assert!(report.text().contains("the last line is cut") && report.failure().is_none());
    }

    #[test]
    fn a_choice_that_comes_out_otherwise_is_shown_and_is_a_failure() {
        let scratch = Scratch::new("otherwise");
        let mut lines = lines(&scratch);
        let at = lines.iter().rposition(|line| line.starts_with("{\"choice\"")).unwrap();
        let (before, draw) = lines[at].split_once("\"draw\":").unwrap();
        let number: u64 = draw.trim_end_matches('}').parse().unwrap();
        lines[at] = format!("{before}\"draw\":{}{}", number + 1, "}".repeat(3));
        let file = scratch.file("log");
        fs::write(&file, lines.join("\n") + "\n").unwrap();
        let report = report(&[file.to_str().unwrap()]);
        assert!(
            report.text().contains("choices: 59 of 60 reproduced\nfirst difference: seq "),
            "{}",
            report.text()
        );
        assert_eq!(report.failure().as_deref(), Some("1 of 60 choices were not reproduced"));
    }

    #[test]
    fn what_cannot_be_replayed_is_said_in_one_line() {
        let scratch = Scratch::new("flags");
        let error = |arguments: &[&str]| match replay(arguments).and_then(|replay| replay.report()) {
            Ok(_) => unreachable!("{arguments:?}"),
            Err(error) => error.to_string(),
        };
        assert!(error(&["/nowhere/log"]).starts_with("/nowhere/log: "));
        let empty = scratch.file("empty");
        fs::write(&empty, "").unwrap();
        assert!(error(&[empty.to_str().unwrap()]).ends_with(": it is empty"));
        assert!(error(&["x", "--policy", "best"]).contains("--policy: best is not"));
        assert!(error(&["x", "--policy", "random,random"]).contains("given twice"));
        assert!(error(&["x", "--prefill-rate", "0"]).contains("--prefill-rate: 0 is not"));
    }
}

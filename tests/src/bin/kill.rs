//! What a killed worker costs: streams at a steady rate through the real program, and the same again with one worker's
//! process killed half-way. `cargo run --release -p forebay-tests --bin kill -- --forebay target/release/forebay`

#![expect(clippy::expect_used, reason = "this program is a check, and a panic is a report of it")]

use std::cell::RefCell;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use clap::Parser;
use forebay_tests::{Client, Process, request};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// What a killed worker may add to the worst time to the first byte, as the median of all rounds.
const MAY_ADD: Duration = Duration::from_millis(10);

/// What a killed worker costs.
#[derive(Parser, Clone)]
struct Plan {
    /// The program under test.
    #[arg(long)]
    forebay: PathBuf,
    /// Requests in a second.
    #[arg(long, default_value_t = 500)]
    rate: u32,
    /// Seconds of one run; the worker dies half-way.
    #[arg(long, default_value_t = 6)]
    seconds: u32,
    /// Simulated workers, each a process.
    #[arg(long, default_value_t = 4)]
    workers: usize,
    /// Pairs of runs, one without and one with the kill.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Further flags of the program under test.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    flags: String,
}

/// How a request ended, and how long its first byte took.
#[derive(Clone, Copy)]
enum End {
    Whole(Duration),
    /// No head with status 200.
    NoHead,
    /// A head, and then a failure before the first token.
    NoToken,
    /// Broken after the first token, as a stream of a killed worker must be.
    Broken(Duration),
}

fn main() -> ExitCode {
    let plan = Plan::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (mut added, mut lost) = (Vec::new(), 0);
    for round in 1..=plan.rounds {
        let without = runtime.block_on(run(&plan, false));
        let with = runtime.block_on(run(&plan, true));
        let (before, after) = (tell(round, "steady", &without), tell(round, "killed", &with));
        lost += with.iter().filter(|end| matches!(end, End::NoHead | End::NoToken)).count();
        added.push(after.as_secs_f64() - before.as_secs_f64());
    }
    added.sort_by(f64::total_cmp);
    let median = added[added.len() / 2];
    let passed = lost == 0 && median <= MAY_ADD.as_secs_f64();
    println!(
        "kill: {}: {lost} requests failed before their first byte; the worst time to it grew by {:.1} ms (median of {}; all: {:.1?})",
        if passed { "PASSED" } else { "FAILED" },
        median * 1e3,
        added.len(),
        added.iter().map(|seconds| seconds * 1e3).collect::<Vec<_>>()
    );
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// One line for a run; gives the worst time to the first byte.
fn tell(round: usize, name: &str, ends: &[End]) -> Duration {
    let count = |is: fn(&End) -> bool| ends.iter().filter(|end| is(end)).count();
    let mut times: Vec<_> = ends
        .iter()
        .filter_map(|end| match end {
            End::Whole(took) | End::Broken(took) => Some(*took),
            End::NoHead | End::NoToken => None,
        })
        .collect();
    times.sort();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    println!(
        "round {round}, {name}: {} requests, {} without a head, {} without a token, {} broken later; \
         first byte p50 {:.1} p99 {:.1} p99.9 {:.1} max {:.1} ms",
        ends.len(),
        count(|end| matches!(end, End::NoHead)),
        count(|end| matches!(end, End::NoToken)),
        count(|end| matches!(end, End::Broken(_))),
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    );
    times[times.len() - 1]
}

async fn run(plan: &Plan, kill: bool) -> Vec<End> {
    let (mut workers, mut urls) = (Vec::new(), Vec::new());
    for _ in 0..plan.workers {
        let mut worker = Process::start(&plan.forebay, "sim --port 0");
        urls.push(worker.event("listening").await["url"].as_str().expect("a URL").to_owned());
        workers.push(worker);
    }
    let flags =
        format!("--port 0 --admin-port 0 --log-level error {} --worker-urls {}", plan.flags, urls.join(" "));
    let mut router = Process::start(&plan.forebay, &flags);
    let listening = router.event("listening").await;
    let url: Rc<str> = listening["url"].as_str().expect("a URL").into();
    let admin = listening["admin_url"].as_str().expect("a URL").to_owned();
    router.event("ready").await;
    all_well(&admin).await;

    let idle = Rc::new(RefCell::new(Vec::new()));
    let total = plan.rate * plan.seconds;
    let local = tokio::task::LocalSet::new();
    local
        .run_until(async {
            let mut asking = JoinSet::new();
            let start = Instant::now() + Duration::from_millis(200);
            for number in 0..total {
                sleep_until(start + Duration::from_secs(number.into()) / plan.rate).await;
                if kill && number == total / 2 {
                    workers[0].kill().await;
                }
                let (url, idle) = (Rc::clone(&url), Rc::clone(&idle));
                asking.spawn_local(async move { ask(&url, &idle, number).await });
            }
            asking.join_all().await
        })
        .await
}

async fn all_well(admin: &str) {
    let mut client = Client::connect(admin).await;
    loop {
        let list = client.get("/workers").await.json();
        let workers = list["workers"].as_array().cloned().unwrap_or_default();
        if workers.iter().all(|worker| worker["health"] == "healthy") {
            return;
        }
    }
}

async fn ask(url: &str, idle: &RefCell<Vec<Client>>, number: u32) -> End {
    let kept = idle.borrow_mut().pop();
    let mut client = match kept {
        Some(client) => client,
        None => Client::connect(url).await,
    };
    let body = format!(r#"{{"prompt":"number {number}","max_tokens":12,"stream":true}}"#);
    let began = Instant::now();
    client.send(&request("POST", "/v1/completions", &[], body.as_bytes())).await;
    let Ok(head) = client.head().await else { return End::NoHead };
    if head.status != 200 {
        return End::NoHead;
    }
    let (mut text, mut first) = (Vec::new(), None);
    if head.text("transfer-encoding").is_some() {
        while let Ok(Some(chunk)) = client.chunk().await {
            first.get_or_insert_with(|| began.elapsed());
            text.extend_from_slice(&chunk);
        }
    } else if let Ok(whole) = client.body(&head, "POST").await {
        // On a machine that is busy a stream can have come whole before it is read: then it has a length.
        first = Some(began.elapsed());
        text = whole;
    }
    let text = String::from_utf8_lossy(&text);
    match first {
        Some(took) if text.ends_with("data: [DONE]\n\n") => {
            idle.borrow_mut().push(client);
            End::Whole(took)
        }
        Some(took) if text.matches("data: ").count() > 1 => End::Broken(took),
        _ => End::NoToken,
    }
}

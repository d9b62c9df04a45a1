//! What two threads do together that share one policy, against one thread alone: 2 KiB prompts in JSON, of which 9 of 10
//! are known. And the share of a request's work for which the lock is held.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use forebay_benches::Idle;
use forebay_openai::{BodyShape, Facts, Scratch};
use forebay_policy::{Ask, Policy, PolicySettings, PrefixKey};

const REQUESTS: u64 = 400_000;
const ROUNDS: usize = 7;

/// The allocator that is shipped.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Prompts that fill a tree of the default size, so that what is measured is how it goes on for good: each new prompt
/// takes the place of an old one, and no memory is touched for the first time.
const FILL: u64 = 110_000;

const WORKERS: Idle = Idle { workers: 4, cache_tokens: 0 };

/// A body whose prompt begins with a number of eight digits.
struct Body(Vec<u8>);

impl Body {
    const AT: usize = 23;

    fn new() -> Self {
        Self(format!(r#"{{"model":"m","prompt":"00000000 {}","max_tokens":16}}"#, "word ".repeat(408)).into())
    }

    fn number(&mut self, number: u64) {
        let digits = format!("{number:08}");
        self.0[Self::AT..Self::AT + 8].copy_from_slice(digits.as_bytes());
    }
}

/// What a data thread does of a request as far as the policy is concerned; gives how long the choice took.
fn request(body: &[u8], scratch: &mut Scratch, key: &mut PrefixKey, policy: &Policy) -> Duration {
    let Ok(facts) = Facts::read(BodyShape::Completions, black_box(body), scratch) else {
        return Duration::ZERO;
    };
    let mut builder = key.builder(0);
    facts.prompt.parts().iter().flat_map(|parts| parts.iter()).for_each(|part| builder.push(part));
    builder.finish();
    let ask = Ask { prefix: Some(key), ..Ask::default() };
    let begin = Instant::now();
    black_box(policy.select(&ask, &WORKERS, |_| ()));
    begin.elapsed()
}

/// Requests of one thread; every tenth is new.
fn work(policy: &Policy, thread: u64) -> Duration {
    let (mut body, mut scratch, mut key) = (Body::new(), Scratch::default(), PrefixKey::new());
    let mut choosing = Duration::ZERO;
    for i in 0..REQUESTS {
        let known = i * 7 % 1000;
        body.number(if i % 10 == 0 { 1_000_000 + thread * 10_000_000 + i } else { known });
        choosing += request(&body.0, &mut scratch, &mut key, policy);
    }
    choosing
}

/// A policy with a full tree.
fn full() -> Policy {
    let policy = Policy::new(&PolicySettings::default(), 1);
    let (mut body, mut scratch, mut key) = (Body::new(), Scratch::default(), PrefixKey::new());
    for i in 0..FILL {
        body.number(50_000_000 + i);
        request(&body.0, &mut scratch, &mut key, &policy);
    }
    policy
}

/// Seconds that so many threads take, and the share of them spent in choices.
fn run(threads: u64) -> (f64, f64) {
    let policy = full();
    let barrier = Barrier::new(threads as usize + 1);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let (policy, barrier) = (&policy, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    work(policy, thread)
                })
            })
            .collect();
        barrier.wait();
        let begin = Instant::now();
        let choosing: Duration = workers.into_iter().filter_map(|worker| worker.join().ok()).sum();
        let took = begin.elapsed().as_secs_f64();
        (took, choosing.as_secs_f64() / (took * threads as f64))
    })
}

fn main() {
    let mut rounds: Vec<(f64, f64, f64)> = (0..ROUNDS)
        .map(|_| {
            let ((alone, share), (together, _)) = (run(1), run(2));
            (2.0 * alone / together, REQUESTS as f64 / alone, share)
        })
        .collect();
    rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (ratio, rate, share) = rounds[ROUNDS / 2];
    println!("one thread: {rate:.0} requests/s, {:.0} ns in the choice of each", share / rate * 1e9);
    println!("two threads do {ratio:.2} times what one does (median of {ROUNDS} rounds)");
}

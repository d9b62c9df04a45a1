//! Faults: each second one worker is hit by one, for a few seconds. It never looks at answers.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::chance::Chance;
use crate::worker::Remote;

/// The workers. Whoever holds one may hurt it.
pub(crate) type Fleet = Vec<Arc<Mutex<Remote>>>;

/// What may happen to a share of a worker's requests.
const SHARED: [&str; 24] = [
    "queue-overflow",
    "paused",
    "scaling",
    "too-many-requests",
    "internal-error",
    "status=502",
    "status=504",
    "engine-dead",
    "never-answer",
    "close-before-head",
    "close-after-request-bytes=20",
    "close-mid-head",
    "reset",
    "garbage",
    "huge-head=1048576",
    "head-then-silence",
    "byte-by-byte",
    "stall-mid-stream=2",
    "close-mid-stream=2",
    "close-mid-record=2",
    "close-after-done",
    "reset-mid-stream=1",
    "chunked-garbage=1",
    "error-in-stream=1",
];

/// Those that end a connection in ways that workers may.
const MILD: [&str; 4] = ["close-after-answer", "connection-close", "interim=103", "length-too-long=10"];

/// Injects faults until it is dropped. One worker is always left in peace.
pub(crate) async fn inject(fleet: Fleet, seed: u64) {
    let mut chance = Chance::new(seed, 1 << 40);
    let mut under_way = JoinSet::new();
    loop {
        sleep(Duration::from_secs(1)).await;
        while under_way.try_join_next().is_some() {}
        let worker = Arc::clone(chance.pick(&fleet));
        let (fault, lasts) = (draw(&mut chance), Duration::from_millis(300 + chance.below(3500)));
        if under_way.len() + 1 >= fleet.len() {
            continue;
        }
        if let Ok(worker) = worker.try_lock_owned() {
            under_way.spawn(hurt(worker, fault, lasts));
        }
    }
}

enum Hurt {
    Kill,
    Stop,
    Order(String),
    Listen(&'static str),
}

fn draw(chance: &mut Chance) -> Hurt {
    match chance.below(20) {
        0..3 => Hurt::Kill,
        3..5 => Hurt::Stop,
        5..7 => Hurt::Listen("refuse"),
        7 => Hurt::Listen("pause"),
        8..10 => Hurt::Order(format!("share 0.5 {}", chance.pick(&MILD))),
        _ => {
            let share = *chance.pick(&["0.05", "0.3", "1"]);
            Hurt::Order(format!("share {share} {}", chance.pick(&SHARED)))
        }
    }
}

async fn hurt(mut worker: OwnedMutexGuard<Remote>, what: Hurt, lasts: Duration) {
    match what {
        Hurt::Kill => {
            worker.kill().await;
            sleep(lasts).await;
            worker.restart().await;
        }
        Hurt::Stop => {
            worker.signal("-STOP").await;
            sleep(lasts).await;
            worker.signal("-CONT").await;
        }
        Hurt::Order(order) => {
            worker.order(&order).await;
            sleep(lasts).await;
            worker.order("clear").await;
        }
        Hurt::Listen(order) => {
            worker.order(order).await;
            sleep(lasts).await;
            worker.order("accept").await;
        }
    }
}

//! Quiet points: faults end, clients wait, and then every count has to be right to the last one.

use std::time::Duration;

use forebay_tests::{Client, site};
use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, sleep};

use crate::answers::Seen;
use crate::asks::Ask;
use crate::chance::Chance;
use crate::chaos::Fleet;
use crate::clients::Asker;
use crate::router::{Router, load, outcomes};
use crate::tally::Tally;
use crate::worker::Remote;

/// Longest wait for a count to become right.
const PATIENCE: Duration = Duration::from_secs(30);

/// Streams that are held while loads are compared.
const HELD: u64 = 24;

/// Requests in a row that have to be answered well when all faults are over.
const CALM: usize = 40;

/// What was measured at a quiet point.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Seconds since the start.
    pub(crate) at: f64,
    /// Resident memory of the router, in bytes.
    pub(crate) resident: u64,
    /// Its open descriptors.
    pub(crate) descriptors: usize,
}

/// What is compared.
pub(crate) struct Quiet<'a> {
    pub(crate) router: &'a Router,
    pub(crate) fleet: &'a Fleet,
    pub(crate) tally: &'a Tally,
    pub(crate) chance: Chance,
    pub(crate) started: Instant,
}

impl Quiet<'_> {
    /// The check. Nobody else may send a request meanwhile.
    pub(crate) async fn check(&mut self) -> Sample {
        let mut workers = Vec::new();
        for worker in self.fleet {
            workers.push(worker.clone().lock_owned().await);
        }
        self.all_well().await;
        self.every_request_has_one_outcome().await;
        self.loads(&mut workers, 0).await;
        self.compare_held(&mut workers).await;
        self.calm().await;
        self.every_request_has_one_outcome().await;
        self.loads(&mut workers, 0).await;
        let metrics = self.router.metrics().await;
        for (family, labels) in [
            ("forebay_policy_invariant_violations_total", &[][..]),
            ("forebay_requests_total", &["outcome=\"panicked\""][..]),
        ] {
            if site::sum(&metrics, family, labels) != 0 {
                self.tally.wrong(&format!("{family} {labels:?} is not 0"));
            }
        }
        let process = &self.router.process;
        let at = self.started.elapsed().as_secs_f64();
        Sample { at, resident: process.resident(), descriptors: process.descriptors() }
    }

    async fn all_well(&self) {
        let began = Instant::now();
        while !self.router.all_well().await {
            if began.elapsed() > PATIENCE {
                return self.tally.wrong("not all workers are well again");
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// The sum of all outcomes is the number of requests sent.
    async fn every_request_has_one_outcome(&self) {
        let (began, sent) = (Instant::now(), self.tally.all());
        loop {
            let outcomes = outcomes(&self.router.metrics().await);
            let counted: u64 = outcomes.values().sum();
            if counted == sent {
                return;
            }
            if began.elapsed() > PATIENCE {
                return self.tally.wrong(&format!("{sent} requests have {counted} outcomes: {outcomes:?}"));
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// The load of each worker is what the worker counts; all together it is `total`.
    async fn loads(&self, workers: &mut [OwnedMutexGuard<Remote>], total: u64) {
        let began = Instant::now();
        loop {
            let metrics = self.router.metrics().await;
            let mut both = Vec::new();
            for worker in workers.iter_mut() {
                both.push((load(&metrics, &worker.url()), worker.open().await));
            }
            let sum: u64 = both.iter().map(|(router, _)| router).sum();
            if sum == total && both.iter().all(|(router, worker)| router == worker) {
                return;
            }
            if began.elapsed() > PATIENCE {
                return self.tally.wrong(&format!("of {total}, loads (router, worker) are {both:?}"));
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Loads are compared while streams are held.
    async fn compare_held(&mut self, workers: &mut [OwnedMutexGuard<Remote>]) {
        let mut clients = Vec::new();
        let began = Instant::now();
        while (clients.len() as u64) < HELD {
            let mut client = Client::connect(&self.router.url).await;
            self.tally.sent();
            client.send(&Ask::held(&mut self.chance)).await;
            // A breaker may still be open.
            if client.head().await.is_ok_and(|head| head.status == 200) {
                client.chunk().await.expect("a first record");
                clients.push(client);
            } else if began.elapsed() > PATIENCE {
                return self.tally.wrong("streams are not taken when all workers are well");
            }
        }
        self.loads(workers, HELD).await;
        drop(clients);
    }

    /// All faults are over: after what breakers take to close, everything is answered well.
    async fn calm(&mut self) {
        let (began, tally) = (Instant::now(), self.tally);
        let mut asker = Asker { url: &self.router.url, tally, kept: None };
        let mut well = 0;
        while well < CALM {
            let ask = Ask { name: "calm", ..Ask::generating(&mut self.chance, well % 2 == 0) };
            well = if asker.ask(&ask).await == Seen::Right { well + 1 } else { 0 };
            if began.elapsed() > PATIENCE {
                return tally.wrong("requests fail although all workers are well");
            }
        }
    }
}

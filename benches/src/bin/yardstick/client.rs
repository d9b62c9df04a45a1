//! Clients that ask for as long as they live and check every answer. Knows nothing of what is between them and a worker.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::answer::{Answer, Reader, Wrong};
use crate::case::Draws;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Of this many requests one is cancelled, if cancelling is on.
const CANCEL_ONE_OF: u64 = 100;

/// What clients do.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) target: SocketAddr,
    pub(crate) requests: Arc<Vec<Vec<u8>>>,
    pub(crate) clients: usize,
    /// What every answer has to be; `None` accepts any with status 200.
    pub(crate) expected: Option<Answer>,
    /// Requests per second of all clients together; `None` asks again at once.
    pub(crate) rate: Option<f64>,
    /// Whether one request of a hundred is given up before its answer.
    pub(crate) cancel: bool,
}

/// Counters of a crowd. Atomic because tasks must be `Send`, although there is one thread.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    served: AtomicU64,
    records: AtomicU64,
    errors: AtomicU64,
    cancelled: AtomicU64,
    timing: AtomicBool,
    latencies: Mutex<Vec<Duration>>,
    complaint: Mutex<Option<String>>,
}

/// A reading of the counters.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) served: u64,
    /// Records of streams, those of unfinished ones too.
    pub(crate) records: u64,
    pub(crate) errors: u64,
    pub(crate) cancelled: u64,
}

impl Tally {
    pub(crate) fn counts(&self) -> Counts {
        Counts {
            served: self.served.load(Ordering::Relaxed),
            records: self.records.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
            cancelled: self.cancelled.load(Ordering::Relaxed),
        }
    }

    /// Begins to keep latencies.
    pub(crate) fn start_timing(&self) {
        self.timing.store(true, Ordering::Relaxed);
    }

    /// The latencies kept so far, sorted; keeps no more.
    pub(crate) fn take_latencies(&self) -> Vec<Duration> {
        self.timing.store(false, Ordering::Relaxed);
        let mut latencies =
            std::mem::take(&mut *self.latencies.lock().unwrap_or_else(PoisonError::into_inner));
        latencies.sort_unstable();
        latencies
    }

    /// The first thing that went wrong.
    pub(crate) fn complaint(&self) -> Option<String> {
        self.complaint.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn right(&self, latency: Duration) {
        self.served.fetch_add(1, Ordering::Relaxed);
        if self.timing.load(Ordering::Relaxed) {
            self.latencies.lock().unwrap_or_else(PoisonError::into_inner).push(latency);
        }
    }

    fn wrong(&self, error: &Wrong) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        self.complaint
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert_with(|| error.to_string());
    }
}

/// Running clients. They stop when this is dropped.
pub(crate) struct Crowd {
    pub(crate) tally: Arc<Tally>,
    stop: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

impl Crowd {
    /// Starts the clients, spread over one second if their answers take time.
    pub(crate) fn start(plan: &Plan, spread: Duration) -> Self {
        let (tally, stop) = (Arc::new(Tally::default()), Arc::new(AtomicBool::new(false)));
        let mut tasks = JoinSet::new();
        for number in 0..plan.clients {
            let mut client = Client {
                plan: plan.clone(),
                tally: Arc::clone(&tally),
                reader: Reader::new(),
                draws: Draws::new(number as u64 + 1000),
                connection: None,
            };
            let stop = Arc::clone(&stop);
            let delay = spread * number as u32 / plan.clients as u32;
            tasks.spawn(async move {
                tokio::time::sleep(delay).await;
                client.run(number, &stop).await;
            });
        }
        Self { tally, stop, tasks }
    }

    /// Lets every client finish its request.
    pub(crate) async fn finish(mut self) -> Arc<Tally> {
        self.stop.store(true, Ordering::Relaxed);
        while self.tasks.join_next().await.is_some() {}
        self.tally
    }
}

/// Sends one request on a new connection and reads its answer.
pub(crate) async fn ask(target: SocketAddr, request: &[u8]) -> Result<Answer, Wrong> {
    let mut connection = TcpStream::connect(target).await?;
    connection.write_all(request).await?;
    let answer = timeout(PATIENCE, Reader::new().read(&mut connection, |_| {})).await;
    answer.map_err(|_| Wrong::Io(std::io::ErrorKind::TimedOut.into()))?
}

struct Client {
    plan: Plan,
    tally: Arc<Tally>,
    reader: Reader,
    draws: Draws,
    connection: Option<TcpStream>,
}

impl Client {
    async fn run(&mut self, number: usize, stop: &AtomicBool) {
        let begin = Instant::now();
        let gap = self.plan.rate.map(|rate| Duration::from_secs_f64(self.plan.clients as f64 / rate));
        let mut due = gap.map(|gap| begin + gap * number as u32 / self.plan.clients as u32);
        while !stop.load(Ordering::Relaxed) {
            if let (Some(due), Some(gap)) = (&mut due, gap) {
                tokio::time::sleep_until((*due).into()).await;
                // A client that cannot keep up does not make up for it with a burst.
                *due = (*due + gap).max(Instant::now());
            }
            let cancel = self.plan.cancel && self.draws.next().is_multiple_of(CANCEL_ONE_OF);
            let sent = Instant::now();
            let result = if cancel { self.give_up().await } else { self.ask().await };
            match result {
                Ok(Some(_)) => self.tally.right(sent.elapsed()),
                Ok(None) => {
                    self.tally.cancelled.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => {
                    self.tally.wrong(&error);
                    self.connection = None;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        }
    }

    async fn ask(&mut self) -> Result<Option<Answer>, Wrong> {
        let mut connection = self.send().await?;
        let tally = &self.tally;
        let progress = |records| {
            tally.records.fetch_add(records, Ordering::Relaxed);
        };
        let answer = self.reader.read(&mut connection, progress).await?;
        let got = Answer { close: false, ..answer };
        match self.plan.expected {
            Some(expected) if expected != got => return Err(Wrong::Other { expected, got }),
            None if got.status != 200 => return Err(Wrong::Other { expected: Answer::default(), got }),
            _ => {}
        }
        self.connection = (!answer.close).then_some(connection);
        Ok(Some(answer))
    }

    /// Sends the request and leaves: at once, or when the answer begins.
    async fn give_up(&mut self) -> Result<Option<Answer>, Wrong> {
        let connection = self.send().await?;
        if self.draws.next().is_multiple_of(2) {
            connection.readable().await?;
        }
        Ok(None)
    }

    async fn send(&mut self) -> Result<TcpStream, Wrong> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let connection = TcpStream::connect(self.plan.target).await?;
                connection.set_nodelay(true)?;
                connection
            }
        };
        let requests = &self.plan.requests;
        let request = &requests[self.draws.next() as usize % requests.len()];
        connection.write_all(request).await?;
        Ok(connection)
    }
}

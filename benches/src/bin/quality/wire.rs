//! A run over sockets: simulated workers with the same engine, a router as a process of its own, closed-loop clients.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use forebay_sim::{Worker, WorkerOptions};
use tokio::task::LocalSet;

use crate::connection::Connection;
use crate::contestant::Contestant;
use crate::tally::{Figures, Tally};
use crate::virtual_time::ENGINE;
use crate::workload::{OUTPUT_TOKENS, Request, Shape, Workload};

/// How a run is set up.
#[derive(Clone, Copy)]
pub(crate) struct WirePlan<'a> {
    pub(crate) shape: Shape,
    pub(crate) workers: usize,
    pub(crate) clients: usize,
    pub(crate) requests: usize,
    pub(crate) seed: u64,
    /// Program to judge.
    pub(crate) program: &'a Path,
}

/// What the clients of one run share.
struct Shared {
    workload: RefCell<Workload>,
    left: RefCell<usize>,
    tally: RefCell<Tally>,
    failed: RefCell<usize>,
}

/// Runs to the end. Also gives how many requests failed.
pub(crate) fn run(contestant: Contestant, plan: &WirePlan<'_>) -> io::Result<(Figures, usize)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = LocalSet::new();
    local.block_on(&runtime, judge(contestant, plan))
}

async fn judge(contestant: Contestant, plan: &WirePlan<'_>) -> io::Result<(Figures, usize)> {
    let options = WorkerOptions { keep_alive: None, ..WorkerOptions::engine(ENGINE) };
    let workers: Vec<Worker> =
        (0..plan.workers).map(|_| Worker::start(options.clone())).collect::<io::Result<_>>()?;
    let addrs: Vec<SocketAddr> = workers.iter().map(|worker| worker.addr()).collect();
    let ping = Request { messages: vec![("user", "are you there".to_owned())], session: 0 };
    let router = contestant.start(plan.program, &addrs, &encode(&ping, addrs[0])).await?;
    let shared = Rc::new(Shared {
        workload: RefCell::new(Workload::new(plan.shape, plan.seed)),
        left: RefCell::new(plan.requests),
        tally: RefCell::default(),
        failed: RefCell::default(),
    });
    let begin = Instant::now();
    let clients: Vec<_> = (0..plan.clients)
        .map(|_| tokio::task::spawn_local(client(router.addr, Rc::clone(&shared))))
        .collect();
    for client in clients {
        client.await.map_err(io::Error::other)?;
    }
    let mut tally = shared.tally.take();
    tally.took = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
    for (number, worker) in workers.iter().enumerate() {
        let metrics = Connection::get(worker.addr(), "/metrics").await?;
        tally.prompt_tokens += value(&metrics, "vllm:prefix_cache_queries_total{");
        tally.cached_tokens += value(&metrics, "vllm:prefix_cache_hits_total{");
        tally.served_by(number, worker.stats().served_inference);
    }
    Ok((tally.figures(), shared.failed.take()))
}

/// Asks until nothing is left.
async fn client(addr: SocketAddr, shared: Rc<Shared>) {
    let mut connection = None;
    while shared.left.replace_with(|left| left.saturating_sub(1)) > 0 {
        let request = encode(&shared.workload.borrow_mut().next(), addr);
        let asked = Instant::now();
        match ask(&mut connection, addr, &request).await {
            Ok(first) => {
                let took = u64::try_from(first.duration_since(asked).as_nanos()).unwrap_or(u64::MAX);
                shared.tally.borrow_mut().first_token_after(took);
            }
            Err(_) => {
                connection = None;
                shared.failed.replace_with(|failed| *failed + 1);
            }
        }
    }
}

async fn ask(connection: &mut Option<Connection>, addr: SocketAddr, request: &[u8]) -> io::Result<Instant> {
    if connection.is_none() {
        *connection = Some(Connection::open(addr).await?);
    }
    match connection {
        Some(open) => open.ask(request).await,
        None => Err(io::ErrorKind::NotConnected.into()),
    }
}

/// A streamed chat. The words need no escapes.
fn encode(request: &Request, host: SocketAddr) -> Vec<u8> {
    let messages: Vec<_> = request
        .messages
        .iter()
        .map(|(role, text)| format!(r#"{{"role":"{role}","content":"{text}"}}"#))
        .collect();
    let body = format!(
        r#"{{"model":"tiny","messages":[{}],"max_tokens":{OUTPUT_TOKENS},"stream":true}}"#,
        messages.join(",")
    );
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\nx-session-id: s{}\r\ncontent-length: {}\r\n\r\n{body}",
        request.session,
        body.len()
    )
    .into_bytes()
}

fn value(metrics: &str, name: &str) -> u64 {
    let line = metrics.lines().find(|line| line.starts_with(name));
    line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).unwrap_or(0.0) as u64
}

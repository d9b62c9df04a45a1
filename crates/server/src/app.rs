//! The application: listeners, threads and tasks put together. Tests start it in process, as `main` does.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_discovery::{Misfit, Watcher};
use forebay_router::{Books, Router, Side};
use forebay_workers::{Auditor, Reader, World, Writer};
use prometheus::{IntCounter, Registry};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::admin::{self, Admin, Departed};
use crate::cors::Cors;
use crate::data::{self, DataThread, Stop};
use crate::decisions::DecisionLog;
use crate::door::Door;
use crate::drain::Drain;
use crate::fence::{Fence, Post};
use crate::fleet::Fleet;
use crate::http1::connection::Patience;
use crate::log;
use crate::metrics::Metrics;
use crate::roster::{self, DoorAddresses, Doors, Roster};
use crate::settings::{DrainSettings, Listen, Settings};
use crate::startup::StartupError;

/// Connections the kernel keeps for a listener until they are accepted.
const LISTEN_BACKLOG: i32 = 4096;

/// How long answers that are cut may take to tell their clients so, who may not read.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The running application. Dropping it stops it at once.
pub struct App {
    address: SocketAddr,
    admin_address: SocketAddr,
    door_addresses: DoorAddresses,
    reader: Reader,
    router: Arc<Router>,
    drain: DrainSettings,
    misfit: watch::Sender<Option<Misfit>>,
    stop: Stop,
    control: Option<JoinHandle<()>>,
    /// Dropped last, behind whatever could still be noted.
    _decisions: Option<DecisionLog>,
}

impl App {
    /// Binds both listeners and starts all threads. When this returns, sockets accept.
    pub fn start(settings: &Settings) -> Result<Self, StartupError> {
        let listener = listen("--port", settings.listen)?;
        let admin_listener = listen("--admin-port", settings.admin)?;
        let (address, admin_address) = (local(&listener)?, local(&admin_listener)?);
        let doors = Doors::open(settings, listen)?;
        let door_addresses = doors.addresses(local)?;
        let ((reader, writer), auditor) = (roster::fleet(settings), Arc::new(Auditor::default()));
        let metrics = Metrics::register(settings, &reader, &auditor).map_err(broken_metrics)?;
        let trials = metrics.trials(&reader, &auditor).map_err(broken_metrics)?;
        let access_log = log::access(&settings.access_log, metrics.lines_dropped)?;
        let books = Books::new(metrics.router, access_log, trials);
        let decisions = log_decisions(settings, &writer, &metrics.registry)?;
        let knobs = settings.router.clone();
        let router = Arc::new(Router::new(reader.clone(), writer.clone(), knobs, books, metrics.pairs));
        let internal = |error: io::Error| StartupError::Internal(error.to_string());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(internal)?;
        let misfit = watch::Sender::new(None);
        let fleet = roster::kept(settings, (&reader, writer), misfit.clone(), runtime.handle());
        let (fence, posts) = Fence::around(settings.threads.max(1));
        let (drain, stop, watcher) = (settings.drain, Stop::default(), fleet.watcher.clone());
        let admin = admin(settings, (fleet, fence), &router, (metrics.registry, metrics.resets));
        let control = Control {
            admin: admin::api(admin),
            cors: settings.cors.clone().map(Arc::new),
            router: Arc::clone(&router),
            watcher,
            auditor,
            patience: Patience {
                head: settings.client_header,
                idle: settings.client_idle,
                whole: settings.router.times.request,
                body: settings.router.times.client_body,
            },
            stop: stop.clone(),
        };
        let threads = control.data_threads(posts).map_err(internal)?;
        let roster = Roster::of(settings, doors, metrics.announcements, metrics.readiness);
        let run = move || control.run(&runtime, [listener, admin_listener], threads, roster);
        let control = Some(thread("control", run).map_err(internal)?);
        Ok(Self {
            address,
            admin_address,
            door_addresses,
            reader,
            router,
            drain,
            misfit,
            stop,
            control,
            _decisions: decisions,
        })
    }

    /// Where clients connect.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where the admin API and the metrics are.
    pub fn admin_url(&self) -> String {
        format!("http://{}", self.admin_address)
    }

    /// Where workers announce themselves, if they may.
    pub fn announce_address(&self) -> Option<SocketAddr> {
        self.door_addresses.announcements
    }

    /// Where prefill workers say that they have handed over, if they do.
    pub fn readiness_address(&self) -> Option<SocketAddr> {
        self.door_addresses.readiness
    }

    /// What is known of the fleet.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Takes requests to workers, and knows what each trial came to.
    pub fn router(&self) -> &Router {
        &self.router
    }

    /// Resolves when a worker can be chosen, to the number of those that can.
    pub async fn wait_ready(&self) -> usize {
        let world = self.reader.wait_for(World::ready).await;
        world.workers().iter().filter(|worker| worker.eligible()).count()
    }

    /// Resolves when a worker is found to have another number of data-parallel ranks than was given, if ever.
    pub async fn misfit(&self) -> Misfit {
        let mut misfits = self.misfit.subscribe();
        loop {
            if let Some(misfit) = &*misfits.borrow_and_update() {
                return misfit.clone();
            }
            // The sender is here, so that there is always more to wait for.
            let _changed = misfits.changed().await;
        }
    }

    /// Says that it is about to end, goes on for a while so that others hear of it, then stops accepting and lets answers
    /// end, for as long as they may take. Resolves when all have.
    pub async fn shutdown(mut self) {
        self.router.begin_drain();
        if let Some(settle) = self.drain.settle {
            tokio::time::sleep(settle).await;
        }
        self.stop.drain.cancel();
        if let Some(control) = self.control.take() {
            // The thread ends when the last answer has; joining it must not block this runtime.
            let mut joining = tokio::task::spawn_blocking(move || control.join().is_err());
            let joined = match self.drain.timeout {
                Some(limit) => match tokio::time::timeout(limit, &mut joining).await {
                    Ok(joined) => joined,
                    Err(_) => {
                        tracing::warn!("answers that have not ended in time are cut");
                        self.router.cut();
                        self.stop.cut.cancel();
                        match tokio::time::timeout(LAST_WORDS, &mut joining).await {
                            Ok(joined) => joined,
                            Err(_) => {
                                self.stop.now.cancel();
                                joining.await
                            }
                        }
                    }
                },
                None => joining.await,
            };
            if joined.unwrap_or(true) {
                tracing::error!("the control thread panicked");
            }
        }
    }
}

impl Drop for App {
    fn drop(&mut self) {
        self.stop.drain.cancel();
        self.stop.now.cancel();
        if let Some(control) = self.control.take() {
            let _ended = control.join();
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the form that map_err wants")]
fn broken_metrics(error: prometheus::Error) -> StartupError {
    StartupError::Internal(error.to_string())
}

fn thread(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run)
}

/// Everything that is not a data thread runs on one thread: accepting, probes, the admin listener, audits.
struct Control {
    admin: axum::Router,
    cors: Option<Arc<Cors>>,
    router: Arc<Router>,
    watcher: Watcher,
    auditor: Arc<Auditor>,
    patience: Patience,
    stop: Stop,
}

impl Control {
    /// One for each post of the fence.
    fn data_threads(&self, posts: Vec<Post>) -> io::Result<Vec<DataThread>> {
        let nonce = entropy();
        let start = |(number, post)| {
            let door = self.door(Side::Data, nonce + number as u64);
            DataThread::start(number, door, post, self.stop.clone())
        };
        posts.into_iter().enumerate().map(start).collect()
    }

    fn door(&self, side: Side, nonce: u64) -> Door {
        let shard = Arc::new(self.router.shard(nonce));
        let (router, admin, cors) = (Arc::clone(&self.router), self.admin.clone(), self.cors.clone());
        Door { side, router, shard, admin, cors, patience: self.patience }
    }

    fn run(
        self,
        runtime: &tokio::runtime::Runtime,
        [listener, admin_listener]: [TcpListener; 2],
        threads: Vec<DataThread>,
        roster: Roster,
    ) {
        let threads = Arc::new(threads);
        runtime.block_on(async {
            let tasks = &self.watcher.tasks;
            roster.watch(&self.watcher);
            let door = Arc::new(self.door(Side::Admin, entropy()));
            let drain = Arc::new(Drain::default());
            tokio::join!(
                accept_data(listener, &threads, &self.stop.drain),
                accept(admin_listener, &self.stop.drain, async |stream, peer| {
                    let (door, drain) = (Arc::clone(&door), Arc::clone(&drain));
                    tasks.spawn(async move { data::connection(stream, peer, &door, &drain).await });
                }),
                self.audit(),
            );
            drain.begin();
            self.watcher.probe.stop.cancel();
            tasks.close();
            tokio::select! {
                () = tasks.wait() => {}
                () = self.stop.now.cancelled() => {}
            }
            // Requests that data threads have let in may wait for what runs here, as a reset does: it goes on until they end.
            let join = move || Arc::into_inner(threads).into_iter().flatten().for_each(DataThread::join);
            drop(tokio::task::spawn_blocking(join).await);
        });
    }

    /// Looks once a second whether any load has drifted, and clears away what older trials have left.
    async fn audit(&self) {
        let mut every_second = tokio::time::interval(Duration::from_secs(1));
        loop {
            tokio::select! {
                _ = every_second.tick() => {}
                () = self.stop.drain.cancelled() => return,
            }
            for found in self.auditor.audit(&self.watcher.probe.reader.world()) {
                tracing::error!(counter = "in_flight", found, "an invariant is broken");
            }
            for host in self.watcher.probe.writer.remove_drained() {
                tracing::info!(worker = host.url().as_str(), "worker is drained, and off the list");
            }
            let retired = self.watcher.probe.writer.take_retired();
            if !retired.is_empty() {
                // Large trees take milliseconds to take apart: neither requests nor probes wait for that.
                drop(tokio::task::spawn_blocking(move || drop(retired)));
            }
        }
    }
}

/// Has choices written down from now on, if they are to be.
fn log_decisions(
    settings: &Settings,
    writer: &Writer,
    metrics: &Registry,
) -> Result<Option<DecisionLog>, StartupError> {
    let Some(log) = &settings.decision_log else { return Ok(None) };
    let log = DecisionLog::start(log, settings, metrics)?;
    writer.note_in(log.ledger());
    Ok(Some(log))
}

/// What the admin API works on.
fn admin(
    settings: &Settings,
    (fleet, fence): (Fleet, Fence),
    router: &Arc<Router>,
    (registry, resets): (Registry, IntCounter),
) -> Admin {
    Admin {
        reader: fleet.reader.clone(),
        fleet,
        fence,
        router: Arc::clone(router),
        shard: Arc::new(router.shard(entropy())),
        config: admin::Config::of(settings, entropy()),
        registry,
        resets,
        prefix: settings.metrics_prefix,
        departed: Departed::default(),
    }
}

/// Gives each connection to the data thread that has the fewest.
async fn accept_data(listener: TcpListener, threads: &Arc<Vec<DataThread>>, drain: &CancellationToken) {
    let each = async |stream, peer| {
        if let Some(thread) = threads.iter().min_by_key(|thread| thread.open()) {
            thread.take(stream, peer).await;
        }
    };
    accept(listener, drain, each).await;
}

/// Accepts until told to stop, and then those who had come by then. Being out of descriptors is a state that passes: it waits
/// and goes on.
async fn accept(
    listener: TcpListener,
    drain: &CancellationToken,
    mut each: impl AsyncFnMut(std::net::TcpStream, SocketAddr),
) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the listener cannot be used"),
    };
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = drain.cancelled() => break,
        };
        match accepted.and_then(|(stream, peer)| Ok((stream.into_std()?, peer))) {
            Ok((stream, peer)) => each(stream, peer).await,
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    // Whom the kernel has let in already.
    let Ok(listener) = listener.into_std() else { return };
    while let Ok((stream, peer)) = listener.accept() {
        each(stream, peer).await;
    }
}

fn listen(flag: &'static str, at: Listen) -> Result<TcpListener, StartupError> {
    let addr = SocketAddr::new(at.host, at.port);
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::AddrInUse => StartupError::PortInUse { flag, addr },
        _ => StartupError::FlagInvalid(format!("{flag}: cannot listen on {addr}: {error}")),
    };
    let open = || -> io::Result<TcpListener> {
        let socket = socket2::Socket::new(socket2::Domain::for_address(addr), socket2::Type::STREAM, None)?;
        // Not SO_REUSEPORT: a second start on the same port has to fail.
        socket.set_reuse_address(true)?;
        socket.bind(&addr.into())?;
        socket.listen(LISTEN_BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    };
    open().map_err(failed)
}

fn local(listener: &TcpListener) -> Result<SocketAddr, StartupError> {
    listener.local_addr().map_err(|e| StartupError::Internal(e.to_string()))
}

/// A number that differs between processes.
fn entropy() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

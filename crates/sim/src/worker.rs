//! A running worker: its port, the tasks of its connections, its end.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::control::{Control, Listening};
use crate::http::Connection;
use crate::options::WorkerOptions;
use crate::prebuilt::Prebuilt;
use crate::serve::Served;
use crate::state::State;

/// A simulated vLLM worker on 127.0.0.1. It is stopped when it is dropped.
#[derive(Debug)]
pub struct Worker {
    control: Control,
    addr: SocketAddr,
    stopped: CancellationToken,
    tasks: TaskTracker,
}

impl Worker {
    /// Binds the port and serves on the current tokio runtime.
    ///
    /// # Errors
    /// When the port cannot be bound.
    pub fn start(options: WorkerOptions) -> io::Result<Self> {
        // Bound but never listening: it keeps the port while the worker refuses connections.
        let keeper = bound(options.port)?;
        let addr = keeper.local_addr()?.as_socket().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let listener = listening_on(addr)?;
        let state = State::new(options, addr.port());
        let prebuilt = Prebuilt::new(&state);
        let (listening, wanted) = watch::channel(Listening::Accepting);
        let (reach, reached) = watch::channel(Listening::Accepting);
        let control = Control { served: Arc::new(Served { state, prebuilt }), listening, reached };
        let worker = Self { control, addr, stopped: CancellationToken::new(), tasks: TaskTracker::new() };
        let port = Port {
            addr,
            _keeper: keeper,
            wanted,
            reach,
            served: worker.control.served.clone(),
            stopped: worker.stopped.clone(),
            tasks: worker.tasks.clone(),
        };
        worker.tasks.spawn(port.run(listener));
        worker.tasks.close();
        Ok(worker)
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its base URL, without a slash at the end.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// A handle for tests, which may outlive the worker.
    #[must_use]
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Stops hard: resets all connections and frees the port. Returns when nothing of the worker runs any more.
    pub async fn stop(self) {
        self.control.served.state.leave();
        self.stopped.cancel();
        self.tasks.wait().await;
    }
}

impl Deref for Worker {
    type Target = Control;

    fn deref(&self) -> &Control {
        &self.control
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.control.served.state.leave();
        self.stopped.cancel();
    }
}

fn bound(port: u16) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into())?;
    Ok(socket)
}

fn listening_on(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = bound(addr.port())?;
    socket.set_nonblocking(true)?;
    socket.listen(1024)?;
    TcpListener::from_std(socket.into())
}

/// The accept loop's belongings.
struct Port {
    addr: SocketAddr,
    _keeper: Socket,
    wanted: watch::Receiver<Listening>,
    reach: watch::Sender<Listening>,
    served: Arc<Served>,
    stopped: CancellationToken,
    tasks: TaskTracker,
}

impl Port {
    async fn run(mut self, listener: TcpListener) {
        let mut listener = Some(listener);
        let mut next_id = 0;
        loop {
            let wanted = *self.wanted.borrow_and_update();
            match wanted {
                Listening::Refusing => listener = None,
                Listening::Accepting | Listening::Paused if listener.is_none() => {
                    listener = listening_on(self.addr).ok();
                }
                Listening::Accepting | Listening::Paused => {}
            }
            self.reach.send_replace(wanted);
            let open = listener.as_ref().filter(|_| wanted == Listening::Accepting);
            tokio::select! {
                () = self.stopped.cancelled() => return,
                changed = self.wanted.changed() => if changed.is_err() {
                    // All handles are gone, so nobody can change it any more: only the stop is left to wait for.
                    self.stopped.cancelled().await;
                    return;
                },
                accepted = accept(open) => if let Ok(stream) = accepted {
                    self.take_up(stream, next_id);
                    next_id += 1;
                },
            }
        }
    }

    fn take_up(&self, stream: TcpStream, id: u64) {
        let served = self.served.clone();
        let stopped = self.stopped.clone();
        self.tasks.spawn(async move {
            let _ = stream.set_nodelay(true);
            let mut connection = Connection::new(stream, id);
            tokio::select! {
                biased;
                () = served.connection(&mut connection) => {}
                () = stopped.cancelled() => {
                    // A zero linger makes the close a reset.
                    let _ = SockRef::from(&connection.stream).set_linger(Some(Duration::ZERO));
                }
            }
        });
    }
}

async fn accept(listener: Option<&TcpListener>) -> io::Result<TcpStream> {
    match listener {
        Some(listener) => listener.accept().await.map(|(stream, _)| stream),
        None => std::future::pending().await,
    }
}

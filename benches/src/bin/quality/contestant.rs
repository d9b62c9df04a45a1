//! The routers that are judged over sockets: how each is started and ended.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forebay_policy::PolicyKind;

use crate::connection::Connection;

/// Longest wait for a router that was started.
const STARTUP: Duration = Duration::from_secs(60);

/// A router with a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contestant {
    Forebay(PolicyKind),
    Smg,
    Sglang,
}

impl Contestant {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        PolicyKind::ALL.into_iter().map(Self::Forebay).chain([Self::Smg, Self::Sglang])
    }

    pub(crate) fn name(self) -> String {
        match self {
            Self::Forebay(policy) => policy.to_string(),
            Self::Smg => "smg".to_owned(),
            Self::Sglang => "sglang-router".to_owned(),
        }
    }

    /// The program, if it is there.
    pub(crate) fn program(self, forebay: &Path) -> Option<PathBuf> {
        let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
        let path = match self {
            Self::Forebay(_) => forebay.to_owned(),
            Self::Smg => peers.join("smg/bin/smg"),
            Self::Sglang => peers.join("sglang-router/bin/python"),
        };
        path.exists().then_some(path)
    }

    /// Starts it and waits until it answers `request` with 200.
    pub(crate) async fn start(
        self,
        program: &Path,
        workers: &[SocketAddr],
        request: &[u8],
    ) -> io::Result<Running> {
        let (port, admin) = (free_port()?, free_port()?);
        let policy = match self {
            Self::Forebay(policy) => policy,
            Self::Smg | Self::Sglang => PolicyKind::CacheAware,
        };
        let front = match self {
            Self::Forebay(_) => "--threads 1 --log-level warn",
            Self::Smg => "launch --log-level warn",
            Self::Sglang => "-m sglang_router.launch_router --log-level warn",
        };
        let line = format!(
            "{front} --host 127.0.0.1 --port {port} --prometheus-port {admin} --policy {policy} --worker-urls"
        );
        let child = Command::new(program)
            .args(line.split(' '))
            .args(workers.iter().map(|addr| format!("http://{addr}")))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let mut running = Running { child, addr: SocketAddr::from((Ipv4Addr::LOCALHOST, port)) };
        let begin = Instant::now();
        loop {
            if let Ok(mut connection) = Connection::open(running.addr).await
                && connection.ask(request).await.is_ok()
            {
                return Ok(running);
            }
            if running.child.try_wait()?.is_some() || begin.elapsed() > STARTUP {
                return Err(io::Error::other(format!("{} does not start", self.name())));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// A router that serves. It ends when this is dropped.
pub(crate) struct Running {
    child: Child,
    pub(crate) addr: SocketAddr,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

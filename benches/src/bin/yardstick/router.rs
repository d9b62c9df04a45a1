//! The routers that are compared: how each is started, when it is ready, how it is ended.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::ValueEnum;

use crate::client;
use crate::config::{self, Proxied};
use crate::failure::Failure;
use crate::process::Process;

/// Longest wait for a router that was started.
const STARTUP: Duration = Duration::from_secs(60);

/// Client errors in a row of 50 ms each after which a router is taken at its word.
const REFUSALS: u32 = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Router {
    Forebay,
    Haproxy,
    Nginx,
    #[value(name = "vllm-router")]
    Vllm,
    Smg,
    #[value(name = "sglang-router")]
    Sglang,
}

/// What a router is started with.
pub(crate) struct Launch<'a> {
    pub(crate) places: &'a Places,
    /// Addresses of the workers.
    pub(crate) workers: Vec<SocketAddr>,
    /// How many of them prefill, if they have roles.
    pub(crate) prefillers: Option<usize>,
    /// How workers are chosen, for routers that know the word.
    pub(crate) policy: &'a str,
    /// Runtime threads, for routers that let one choose.
    pub(crate) threads: usize,
    /// Cores that it may use, as `taskset` reads them.
    pub(crate) cores: &'a str,
}

/// Where programs and temporary files are.
pub(crate) struct Places {
    pub(crate) forebay: PathBuf,
    /// Environments of the Python routers.
    pub(crate) peers: PathBuf,
    /// Configurations and logs of this run.
    pub(crate) scratch: PathBuf,
}

/// A router that serves. It is ended when this is dropped.
pub(crate) struct Running {
    pub(crate) process: Process,
    pub(crate) addr: SocketAddr,
    /// Where its metrics and its admin API are, if it has them.
    pub(crate) admin: SocketAddr,
    child: Child,
}

impl Router {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Forebay => "forebay",
            Self::Haproxy => "haproxy",
            Self::Nginx => "nginx",
            Self::Vllm => "vllm-router",
            Self::Smg => "smg",
            Self::Sglang => "sglang-router",
        }
    }

    /// The program, if it is there.
    pub(crate) fn program(self, places: &Places) -> Option<PathBuf> {
        let path = match self {
            Self::Forebay => places.forebay.clone(),
            Self::Haproxy => PathBuf::from("/usr/sbin/haproxy"),
            Self::Nginx => PathBuf::from("/usr/sbin/nginx"),
            Self::Vllm => places.peers.join("vllm-router/bin/vllm-router"),
            Self::Smg => places.peers.join("smg/bin/smg"),
            Self::Sglang => places.peers.join("sglang-router/bin/python"),
        };
        path.exists().then_some(path)
    }

    /// What it says about its version.
    pub(crate) fn version(self, places: &Places) -> String {
        let Some(program) = self.program(places) else {
            return "not installed".to_owned();
        };
        let package = match self {
            Self::Forebay => return first_number(Command::new(program).arg("--version")),
            Self::Haproxy | Self::Nginx => return first_number(Command::new(program).arg("-v")),
            Self::Vllm | Self::Smg | Self::Sglang => self.name(),
        };
        let code = format!("import importlib.metadata as m; print(m.version('{package}'))");
        first_number(Command::new(program.with_file_name("python")).arg("-c").arg(code))
    }

    fn arguments(self, launch: &Launch<'_>, port: u16, admin: u16) -> Result<Vec<String>, Failure> {
        let urls = launch.workers.iter().map(|addr| format!("http://{addr}"));
        let scratch = &launch.places.scratch;
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let front = match self {
            Self::Haproxy | Self::Nginx => {
                let proxied = Proxied { port, workers: &launch.workers, scratch, threads: launch.threads };
                let (text, file) = match self {
                    Self::Haproxy => (config::haproxy(&proxied), format!("haproxy-{port}.cfg")),
                    _ => (config::nginx(&proxied), format!("nginx-{port}.conf")),
                };
                let file = scratch.join(file);
                fs::write(&file, text).map_err(Failure::at(file.display().to_string()))?;
                let file = file.display();
                return Ok(match self {
                    Self::Haproxy => words(&format!("-db -f {file}")),
                    _ => words(&format!("-p {} -e stderr -c {file}", scratch.display())),
                });
            }
            Self::Forebay => format!("--threads {} --log-level warn", launch.threads),
            Self::Vllm => "--log-level warning".to_owned(),
            Self::Smg => "launch --log-level warn".to_owned(),
            Self::Sglang => "-m sglang_router.launch_router --log-level warn".to_owned(),
        };
        let policy = launch.policy;
        let front =
            format!("{front} --host 127.0.0.1 --port {port} --prometheus-port {admin} --policy {policy}");
        let Some(prefillers) = launch.prefillers else {
            let common = words(&format!("{front} --worker-urls"));
            return Ok(common.into_iter().chain(urls).collect());
        };
        let roles = urls
            .enumerate()
            .flat_map(|(nth, url)| [if nth < prefillers { "--prefill" } else { "--decode" }.to_owned(), url]);
        let common = words(&format!("{front} --vllm-pd-disaggregation"));
        Ok(common.into_iter().chain(roles).collect())
    }

    /// Starts it, pinned, and waits until it answers `request` with 200.
    pub(crate) async fn start(self, launch: &Launch<'_>, request: &[u8]) -> Result<Running, Failure> {
        let mut running = self.spawn(launch)?;
        let begin = Instant::now();
        let mut refusals = 0;
        loop {
            match client::ask(running.addr, request).await.map(|answer| answer.status) {
                Ok(200) => return Ok(running),
                // It may say so until it knows its workers, but not for long.
                Ok(status @ 400..500) if refusals > REFUSALS => {
                    return Err(Failure::Refused(format!("answers with {status}")));
                }
                Ok(400..500) => refusals += 1,
                Ok(_) | Err(_) => {}
            }
            if let Ok(Some(status)) = running.child.try_wait() {
                return Err(Failure::Refused(format!("{} ended at its start: {status}", self.name())));
            }
            if begin.elapsed() > STARTUP {
                return Err(Failure::Refused(format!("{} does not answer with 200", self.name())));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Starts it, pinned. Its output goes to files.
    pub(crate) fn spawn(self, launch: &Launch<'_>) -> Result<Running, Failure> {
        let program = self
            .program(launch.places)
            .ok_or_else(|| Failure::Refused(format!("{} is not installed", self.name())))?;
        let [port, admin] = [free_port()?, free_port()?];
        let arguments = self.arguments(launch, port, admin)?;
        let output = |kind: &str| {
            let path = launch.places.scratch.join(format!("{}-{port}.{kind}", self.name()));
            File::create(&path).map_err(Failure::at(path.display().to_string()))
        };
        // The second program makes the first one end with the yardstick, even if that is killed.
        let child = Command::new("taskset")
            .args(["-c", launch.cores, "setpriv", "--pdeathsig", "KILL"])
            .arg(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(output("out")?)
            .stderr(output("err")?)
            .spawn()
            .map_err(Failure::at(self.name()))?;
        let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Ok(Running { process: Process { pid: child.id() }, addr: local(port), admin: local(admin), child })
    }
}

impl Running {
    /// Where its stdout goes.
    pub(crate) fn output_path(&self, places: &Places, router: Router) -> PathBuf {
        places.scratch.join(format!("{}-{}.out", router.name(), self.addr.port()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Children first: once the parent is gone, nobody knows whose they were.
        for pid in self.process.family().into_iter().skip(1) {
            let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that nobody listens on.
fn free_port() -> Result<u16, Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Failure::at("free port"))?;
    Ok(listener.local_addr().map_err(Failure::at("free port"))?.port())
}

fn first_number(command: &mut Command) -> String {
    let Ok(output) = command.output() else {
        return "unknown".to_owned();
    };
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let number =
        text.split([' ', '/', '-', '\n']).find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    number.unwrap_or("unknown").to_owned()
}

/// The folder of this package, when it is built from a checkout.
pub(crate) fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

//! What prefill workers hold for decode workers, in one ledger: in this process, or reached from others over a socket. It
//! counts whatever would have killed, hung or misled an engine.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::lock::Held;
use crate::pairs::PairRole;

/// What prefill workers hold for decode workers, and what went wrong.
#[derive(Clone, Debug)]
pub struct Exchange(Arc<Kept>);

#[derive(Debug)]
enum Kept {
    Here(Mutex<Ledger>),
    /// By another process. A question is answered at once, so that nobody is kept waiting by it.
    There(Mutex<BufReader<TcpStream>>),
}

/// What a worker does with the ledger.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Deed {
    /// An engine begins.
    Join,
    /// It ends, and with it everything that it held.
    Leave { engine: String },
    /// Something happened that must not.
    Violate { what: String },
    /// A prefill worker holds blocks.
    Grant { engine: String, request: String, prompt: u64, lease_ms: u64, is_taken: bool },
    /// A decode worker reads them.
    Take { engine: String, request: String, prompt: u64 },
    /// A leg comes that shares an id with another one.
    Meet { id: String, role: PairRole, prompt: u64 },
    /// Is this engine there?
    Ask { engine: String },
    /// The ranks of a prefill worker begin to write a prompt to the decode worker with this port.
    Write { request: String, port: u64, prompt: u64, ranks: usize },
    /// One of them has, and will say so.
    Written { request: String },
    /// A decode worker with this port goes on behind a prompt.
    Fetch { port: u64, prompt: u64 },
    /// Where do prefill workers say that they have written?
    Proxy,
}

/// What comes of it.
#[derive(Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Reply {
    Done,
    No,
    Early,
    Name(String),
    At(SocketAddr),
}

#[derive(Debug, Default)]
struct Ledger {
    engines: HashMap<String, HashMap<String, Grant>>,
    /// Legs that have come by the id that they share: prompts of the prefill leg and of the decode leg.
    shared: HashMap<String, [Option<u64>; 2]>,
    /// Prompts that are written, or were and have not been fetched, by id.
    writes: HashMap<String, Write>,
    proxy: Option<SocketAddr>,
    violations: BTreeMap<String, u64>,
    transfers: u64,
    last_id: u64,
}

/// A prompt on its way to a decode worker.
#[derive(Debug)]
struct Write {
    port: u64,
    prompt: u64,
    /// Ranks that have not written.
    left: usize,
    is_fetched: bool,
}

/// What a decode worker finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fetched {
    Nothing,
    /// Not all ranks have written.
    Early,
    Written,
}

/// Blocks of one prompt.
#[derive(Debug)]
struct Grant {
    prompt: u64,
    until: Instant,
    is_taken: bool,
}

impl Default for Exchange {
    /// One of this process.
    fn default() -> Self {
        Self(Arc::new(Kept::Here(Mutex::default())))
    }
}

impl Exchange {
    /// One that another process [serves](Self::serve).
    ///
    /// # Errors
    /// It cannot be reached.
    pub fn connect(addr: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        Ok(Self(Arc::new(Kept::There(Mutex::new(BufReader::new(stream))))))
    }

    /// Lets workers of other processes share it, for as long as this process lives. A process that ends takes its engines
    /// with it.
    ///
    /// # Errors
    /// No port can be had.
    pub fn serve(&self) -> io::Result<SocketAddr> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let addr = listener.local_addr()?;
        let exchange = self.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let exchange = exchange.clone();
                std::thread::spawn(move || exchange.serve_process(stream));
            }
        });
        Ok(addr)
    }

    fn serve_process(&self, stream: TcpStream) {
        let mut engines = Vec::new();
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        while stream.read_line(&mut line).is_ok_and(|length| length > 0) {
            let Ok(deed) = serde_json::from_str(&line) else { break };
            let reply = self.ask(deed);
            if let Reply::Name(engine) = &reply {
                engines.push(engine.clone());
            }
            if send(stream.get_mut(), &reply).is_err() {
                break;
            }
            line.clear();
        }
        engines.iter().for_each(|engine| self.leave(engine));
    }

    /// What would have harmed an engine, by name, since the start; nothing if another process keeps the ledger.
    #[must_use]
    pub fn violations(&self) -> BTreeMap<String, u64> {
        self.here(|ledger| ledger.violations.clone())
    }

    /// Prompts that were handed over; 0 if another process keeps the ledger.
    #[must_use]
    pub fn transfers(&self) -> u64 {
        self.here(|ledger| ledger.transfers)
    }

    /// Blocks that nobody has fetched and whose lease has not ended; 0 if another process keeps the ledger.
    #[must_use]
    pub fn pinned(&self) -> usize {
        let now = Instant::now();
        self.here(|ledger| {
            let grants = ledger.engines.values().flat_map(HashMap::values);
            grants.filter(|grant| !grant.is_taken && grant.until > now).count()
        })
    }

    /// Every engine has restarted: what they held is gone, and nobody is reached under the old names.
    pub fn forget_all(&self) {
        self.here(|ledger| ledger.engines.clear());
    }

    /// Where prefill workers say that they have written.
    pub fn set_proxy(&self, proxy: SocketAddr) {
        self.here(|ledger| ledger.proxy = Some(proxy));
    }

    pub(crate) fn proxy(&self) -> Option<SocketAddr> {
        match self.ask(Deed::Proxy) {
            Reply::At(proxy) => Some(proxy),
            _ => None,
        }
    }

    pub(crate) fn write(&self, request: &str, port: u64, prompt: u64, ranks: usize) {
        self.ask(Deed::Write { request: request.to_owned(), port, prompt, ranks });
    }

    pub(crate) fn written(&self, request: &str) {
        self.ask(Deed::Written { request: request.to_owned() });
    }

    pub(crate) fn fetch(&self, port: u64, prompt: u64) -> Fetched {
        match self.ask(Deed::Fetch { port, prompt }) {
            Reply::Done => Fetched::Written,
            Reply::Early => Fetched::Early,
            Reply::No | Reply::Name(_) | Reply::At(_) => Fetched::Nothing,
        }
    }

    fn here<T: Default>(&self, read: impl FnOnce(&mut Ledger) -> T) -> T {
        match &*self.0 {
            Kept::Here(ledger) => read(&mut ledger.held()),
            Kept::There(_) => T::default(),
        }
    }

    fn ask(&self, deed: Deed) -> Reply {
        match &*self.0 {
            Kept::Here(ledger) => ledger.held().carry_out(deed),
            Kept::There(stream) => asked_there(&mut stream.held(), &deed).unwrap_or(Reply::No),
        }
    }

    pub(crate) fn violated(&self, what: &str) {
        self.ask(Deed::Violate { what: what.to_owned() });
    }

    /// An engine begins, under a name of its own.
    pub(crate) fn join(&self) -> String {
        match self.ask(Deed::Join) {
            Reply::Name(engine) => engine,
            Reply::Done | Reply::No | Reply::Early | Reply::At(_) => String::new(),
        }
    }

    pub(crate) fn leave(&self, engine: &str) {
        self.ask(Deed::Leave { engine: engine.to_owned() });
    }

    /// An engine holds the blocks of a prompt for so long, under the name of the request. `is_taken` says that it writes
    /// them itself.
    pub(crate) fn grant(
        &self,
        (engine, request): (&str, &str),
        prompt: u64,
        lease: Duration,
        is_taken: bool,
    ) {
        let lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
        let (engine, request) = (engine.to_owned(), request.to_owned());
        self.ask(Deed::Grant { engine, request, prompt, lease_ms, is_taken });
    }

    /// A decode worker reads blocks; false if the engine that holds them is gone.
    pub(crate) fn take(&self, engine: &str, request: &str, prompt: u64) -> bool {
        let (engine, request) = (engine.to_owned(), request.to_owned());
        self.ask(Deed::Take { engine, request, prompt }) == Reply::Done
    }

    /// A leg comes that shares an id with another one.
    pub(crate) fn meet(&self, id: &str, role: PairRole, prompt: u64) {
        self.ask(Deed::Meet { id: id.to_owned(), role, prompt });
    }

    pub(crate) fn has(&self, engine: &str) -> bool {
        self.ask(Deed::Ask { engine: engine.to_owned() }) == Reply::Done
    }
}

/// A line there, a line back.
fn asked_there(stream: &mut BufReader<TcpStream>, deed: &Deed) -> io::Result<Reply> {
    send(stream.get_mut(), deed)?;
    let mut line = String::new();
    stream.read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

fn send(stream: &mut TcpStream, what: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    stream.write_all(&line)
}

impl Ledger {
    fn carry_out(&mut self, deed: Deed) -> Reply {
        match deed {
            Deed::Join => {
                self.last_id += 1;
                let engine = format!("engine-{}", self.last_id);
                self.engines.insert(engine.clone(), HashMap::new());
                return Reply::Name(engine);
            }
            Deed::Leave { engine } => drop(self.engines.remove(&engine)),
            Deed::Violate { what } => self.violated(&what),
            Deed::Grant { engine, request, prompt, lease_ms, is_taken } => {
                let grant =
                    Grant { prompt, until: Instant::now() + Duration::from_millis(lease_ms), is_taken };
                self.engines.entry(engine).or_default().insert(request, grant);
            }
            Deed::Take { engine, request, prompt } => return self.take(&engine, &request, prompt),
            Deed::Meet { id, role, prompt } => self.meet(id, role, prompt),
            Deed::Ask { engine } if !self.engines.contains_key(&engine) => return Reply::No,
            Deed::Ask { .. } => {}
            Deed::Write { request, port, prompt, ranks } => {
                let write = Write { port, prompt, left: ranks, is_fetched: false };
                if self.writes.insert(request, write).is_some() {
                    self.violated("req_id_used_twice");
                }
            }
            Deed::Written { request } => {
                if let Some(write) = self.writes.get_mut(&request) {
                    write.left = write.left.saturating_sub(1);
                }
            }
            Deed::Fetch { port, prompt } => return self.fetch(port, prompt),
            Deed::Proxy => return self.proxy.map_or(Reply::No, Reply::At),
        }
        Reply::Done
    }

    fn violated(&mut self, what: &str) {
        *self.violations.entry(what.to_owned()).or_default() += 1;
    }

    fn take(&mut self, engine: &str, request: &str, prompt: u64) -> Reply {
        let Some(grants) = self.engines.get_mut(engine) else { return Reply::No };
        let wrong = match grants.get_mut(request) {
            None => Some("unknown_reference"),
            Some(grant) => {
                let was_taken = std::mem::replace(&mut grant.is_taken, true);
                if was_taken {
                    Some("used_twice")
                } else if grant.until <= Instant::now() {
                    Some("expired")
                } else if grant.prompt != prompt {
                    Some("other_prompt")
                } else {
                    None
                }
            }
        };
        self.transfers += 1;
        if let Some(wrong) = wrong {
            self.violated(wrong);
        }
        Reply::Done
    }

    fn fetch(&mut self, port: u64, prompt: u64) -> Reply {
        let fits = |write: &&mut Write| write.port == port && write.prompt == prompt && !write.is_fetched;
        let Some(write) = self.writes.values_mut().filter(fits).min_by_key(|write| write.left) else {
            return Reply::No;
        };
        write.is_fetched = true;
        let is_whole = write.left == 0;
        self.transfers += 1;
        if is_whole { Reply::Done } else { Reply::Early }
    }

    fn meet(&mut self, id: String, role: PairRole, prompt: u64) {
        let legs = self.shared.entry(id).or_default();
        let [mine, other] = match role {
            PairRole::Prefill => [0, 1],
            PairRole::Decode => [1, 0],
        };
        let wrong = match (legs[mine].replace(prompt), legs[other]) {
            (Some(_), _) => Some("shared_id_used_twice"),
            (None, Some(theirs)) if theirs != prompt => Some("other_prompt"),
            _ => None,
        };
        self.transfers += u64::from(legs[other].is_some());
        if let Some(wrong) = wrong {
            self.violated(wrong);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    #[test]
    fn processes_share_one_ledger_and_take_their_engines_with_them() {
        let kept = Exchange::default();
        let addr = kept.serve().unwrap();
        let [prefill, decode] = [(); 2].map(|()| Exchange::connect(addr).unwrap());
        let engine = prefill.join();
        prefill.grant((&engine, "a"), 7, LEASE, false);
        prefill.grant((&engine, "b"), 8, LEASE, false);
        assert_eq!((kept.pinned(), decode.has(&engine)), (2, true));
        assert!(decode.take(&engine, "a", 7) && kept.violations().is_empty());
        assert!(decode.take(&engine, "a", 7) && decode.take(&engine, "b", 7));
        let wanted = [("other_prompt".to_owned(), 1), ("used_twice".to_owned(), 1)];
        assert_eq!((kept.violations(), kept.transfers()), (wanted.into(), 3));
        drop(prefill);
        // Its end comes over a socket of its own.
        while decode.has(&engine) {}
        assert!(!decode.take(&engine, "b", 8));
    }
}

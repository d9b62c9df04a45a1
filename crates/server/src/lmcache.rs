//! The flags of LMCache pairs in, settings out: where decode workers take in blocks, where prefill workers say that they have
//! written them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_discovery::Range;
use forebay_pd::Connector;
use forebay_pd::lmcache::Receiver;
use forebay_router::PairSettings;
use forebay_workers::{Role, WorkerUrl};

use crate::given::{Given, Rejected};
use crate::rules::{DURATION, KV_HOST, KV_PORT, LISTEN, REGISTRY};
use crate::settings::{Listen, WorkerSocket};

/// What was said of them.
pub(crate) struct Heard {
    registry: Option<(Given, BTreeMap<String, Receiver>)>,
    host: Option<Given>,
    ports: [Option<Vec<u16>>; 2],
    listen: Option<Listen>,
    ready_timeout: Duration,
    /// The first of them.
    first: Option<(&'static str, Given)>,
}

const INCOMPLETE: &str =
    "lmcache needs --decoder-registry, or --decoder-host, --decoder-init-port and --decoder-alloc-port";

/// Where prefill workers speak, and the pairs with what their legs have to say; pairs of another connector as they were.
///
/// # Errors
/// One that has no use, or lacks another.
pub(crate) fn fit(
    heard: Heard,
    connector: Option<Given>,
    (workers, allow): (&[(WorkerUrl, Role)], &[Range]),
    pairs: PairSettings,
) -> Result<(Option<WorkerSocket>, PairSettings), Rejected> {
    let Some(connector) = connector.filter(|_| pairs.connector == Connector::Lmcache) else {
        let unused = |(key, given): (_, Given)| given.reject(key, "is for --kv-connector lmcache".to_owned());
        return heard.first.map_or(Ok((None, pairs)), |first| Err(unused(first)));
    };
    let Heard { registry, host, ports, listen, ready_timeout, .. } = heard;
    let needs = |what: &str| connector.reject("kv-connector", what.to_owned());
    let listen = listen.ok_or_else(|| needs("lmcache needs --lmcache-proxy-address"))?;
    let decoders: Vec<&WorkerUrl> =
        workers.iter().filter(|(_, role)| *role == Role::Decode).map(|(url, _)| url).collect();
    let receivers = match (registry, host, ports) {
        (Some((given, all)), None, [None, None]) => {
            if let Some(url) = decoders.iter().find(|url| !all.contains_key(url.as_str())) {
                return Err(given.reject("decoder-registry", format!("--decode {url} is not in it")));
            }
            all
        }
        (None, Some(host), [Some(init), Some(alloc)]) => one(&host, [init, alloc], &decoders)?,
        _ => return Err(needs(INCOMPLETE)),
    };
    let pairs = PairSettings { receivers: Arc::new(receivers), ready_timeout, ..pairs };
    Ok((Some(WorkerSocket { listen, allow: allow.to_vec() }), pairs))
}

/// Reads the values: of decode workers all in JSON, or one in parts; of prefill workers where they speak, and for how long that
/// is waited for.
///
/// # Errors
/// The first that cannot be used.
pub(crate) fn read(
    (registry, host, [init, alloc]): (Option<Given>, Option<Given>, [Option<Vec<Given>>; 2]),
    [proxy, ready_timeout]: [Option<Given>; 2],
) -> Result<Heard, Rejected> {
    let of_list = |given: &Option<Vec<Given>>| given.as_ref().and_then(|given| given.first().cloned());
    let first = [
        ("decoder-registry", registry.clone()),
        ("decoder-host", host.clone()),
        ("decoder-init-port", of_list(&init)),
        ("decoder-alloc-port", of_list(&alloc)),
        ("lmcache-proxy-address", proxy.clone()),
        ("lmcache-ready-timeout-secs", ready_timeout.clone()),
    ];
    let all = |given: Given| Ok((given.clone(), REGISTRY.of("decoder-registry", &given)?));
    let ports = |key, given: Option<Vec<Given>>| {
        given.map(|given| given.iter().map(|port| KV_PORT.of(key, port)).collect()).transpose()
    };
    host.as_ref().map(|host| KV_HOST.of("decoder-host", host)).transpose()?;
    let or = PairSettings::default().ready_timeout;
    Ok(Heard {
        registry: registry.map(all).transpose()?,
        host,
        ports: [ports("decoder-init-port", init)?, ports("decoder-alloc-port", alloc)?],
        listen: proxy.map(|given| LISTEN.of("lmcache-proxy-address", &given)).transpose()?,
        ready_timeout: DURATION.read("lmcache-ready-timeout-secs", ready_timeout, or)?,
        first: first.into_iter().find_map(|(key, given)| Some((key, given?))),
    })
}

/// Of the one decode worker that there is.
fn one(
    host: &Given,
    [init, alloc]: [Vec<u16>; 2],
    decoders: &[&WorkerUrl],
) -> Result<BTreeMap<String, Receiver>, Rejected> {
    let [url] = decoders else {
        let problem =
            format!("is for one --decode, of which there are {}: --decoder-registry", decoders.len());
        return Err(host.reject("decoder-host", problem));
    };
    let receiver = Receiver::new(host.text(), init, alloc)
        .map_err(|error| host.reject("decoder-host", error.to_string()))?;
    Ok([(url.as_str().to_owned(), receiver)].into())
}

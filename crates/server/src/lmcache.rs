//! The flags of LMCache pairs in, settings out: where decode workers take in blocks, where prefill workers say that they have
//! written them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_discovery::Range;
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
}

const INCOMPLETE: &str =
    "lmcache needs --decoder-registry, or --decoder-host, --decoder-init-port and --decoder-alloc-port";

/// Where prefill workers speak. The pairs get what their legs have to say.
///
/// # Errors
/// One that lacks another, or does not go with it.
pub(crate) fn fit(
    heard: Heard,
    connector: &Given,
    (workers, allow): (&[(WorkerUrl, Role)], Vec<Range>),
    pairs: &mut PairSettings,
) -> Result<WorkerSocket, Rejected> {
    let Heard { registry, host, ports, listen, ready_timeout } = heard;
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
    (pairs.receivers, pairs.ready_timeout) = (Arc::new(receivers), ready_timeout);
    Ok(WorkerSocket { listen, allow })
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

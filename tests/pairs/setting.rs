//! Prefill and decode workers with the application in front of them.

use std::sync::Arc;
use std::time::Duration;

use forebay::settings::{RoleSettings, Settings};
use forebay_pd::Connector;
use forebay_pd::lmcache::Receiver;
use forebay_policy::{LoadKind, PolicyKind, PolicySettings};
use forebay_router::PairSettings;
use forebay_sim::{Exchange, Handing, PairOptions, PairRole, Speech, Worker, WorkerOptions};
use forebay_tests::announcing::{self, Announced, Beats};
use forebay_tests::{Site, site};
use forebay_workers::{Role, WorkerUrl};

/// The site; its workers are the prefill workers, then the decode workers.
pub(crate) struct Setting {
    pub(crate) site: Site,
    pub(crate) exchange: Exchange,
    pub(crate) prefills: usize,
    _beats: Vec<Beats>,
}

/// Where the others reach the worker of this number, if they were to.
pub(crate) fn kv_port(i: usize) -> u16 {
    21_001 + 10 * u16::try_from(i).unwrap()
}

/// Where the worker of this number takes in blocks: it has two ranks.
fn receiver(i: usize) -> Receiver {
    let port = kv_port(i);
    Receiver::new("127.0.0.1", vec![port, port + 1], vec![port + 2, port + 3]).unwrap()
}

/// The connectors whose legs are of the client's own API.
pub(crate) fn alike() -> impl Iterator<Item = Connector> {
    Connector::ALL.into_iter().filter(|connector| !connector.makes_first_token())
}

/// How many of each, and how they hand over.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) prefills: usize,
    pub(crate) decodes: usize,
    pub(crate) connector: Connector,
}

pub(crate) const ONE_EACH: Shape = Shape { prefills: 1, decodes: 1, connector: Connector::Nixl };

impl Shape {
    pub(crate) fn by(self, connector: Connector) -> Self {
        Self { connector, ..self }
    }

    /// Options of a worker in this role.
    pub(crate) fn options(self, role: PairRole, exchange: &Exchange) -> WorkerOptions {
        let handing = match self.connector {
            Connector::Nixl => Handing::Pull,
            Connector::NixlPush => Handing::Push,
            Connector::Bootstrap => Handing::Room,
            Connector::Nccl => Handing::Named { port: 0 },
            Connector::Lmcache => Handing::Disagg { port: 0, speech: Speech::default() },
        };
        let lease = Duration::from_secs(30);
        let pair = Some(PairOptions { role, handing, lease, exchange: exchange.clone() });
        WorkerOptions { pair, ..WorkerOptions::recording() }
    }

    pub(crate) async fn start(self) -> Setting {
        self.start_with(|_| (), |_| ()).await
    }

    /// With other options of workers and other settings.
    pub(crate) async fn start_with(
        self,
        options: impl Fn(&mut WorkerOptions),
        change: impl FnOnce(&mut Settings),
    ) -> Setting {
        let exchange = Exchange::default();
        let workers: Vec<Worker> = self
            .roles()
            .enumerate()
            .map(|(i, role)| {
                let mut made = self.options(role, &exchange);
                if let Some(PairOptions { handing, .. }) = &mut made.pair
                    && let Handing::Named { port } | Handing::Disagg { port, .. } = handing
                {
                    *port = kv_port(i);
                }
                options(&mut made);
                site::worker(made)
            })
            .collect();
        let mut settings = self.settings(workers.iter().map(|worker| worker.url()));
        change(&mut settings);
        let app = site::start(&settings).await;
        let mut beats = Vec::new();
        if let Some(address) = app.announce_address() {
            for (i, worker) in workers.iter().enumerate() {
                let kind = if i < self.prefills { "P" } else { "D" };
                let kv_address = format!("127.0.0.1:{}", kv_port(i));
                beats.push(Beats::begin(address, Announced::of(kind, &worker.url(), &kv_address)).await);
                // In this order, as a list would be.
                app.reader().wait_for(|world| world.hosts().len() > i).await;
            }
            app.reader().wait_for(|world| world.workers().iter().all(|worker| worker.eligible())).await;
        }
        if let Some(proxy) = app.readiness_address() {
            exchange.set_proxy(proxy);
        }
        Setting { site: Site { app, workers }, exchange, prefills: self.prefills, _beats: beats }
    }

    /// Prefill workers first.
    pub(crate) fn roles(self) -> impl Iterator<Item = PairRole> {
        let roles = [(PairRole::Prefill, self.prefills), (PairRole::Decode, self.decodes)];
        roles.into_iter().flat_map(|(role, count)| std::iter::repeat_n(role, count))
    }

    /// In front of workers with these URLs, in order of their roles.
    pub(crate) fn settings(self, urls: impl Iterator<Item = String>) -> Settings {
        let bootstrap_port = (self.connector == Connector::Bootstrap).then_some(8998);
        let role = |role| match role {
            PairRole::Prefill => Role::Prefill { bootstrap_port },
            PairRole::Decode => Role::Decode,
        };
        // Workers of this one announce themselves.
        let announces = self.connector == Connector::Nccl;
        let given = urls.zip(self.roles()).filter(|_| !announces);
        let roster: Vec<(WorkerUrl, Role)> =
            given.map(|(url, kind)| (url.parse().unwrap(), role(kind))).collect();
        let policy = PolicySettings {
            kind: PolicyKind::LeastLoaded,
            load: LoadKind::Tokens,
            ..PolicySettings::default()
        };
        let mut settings = site::settings(PolicyKind::LeastLoaded, &[]);
        let announced = announces.then(announcing::settings);
        let is_told = self.connector == Connector::Lmcache;
        let readiness = is_told.then(announcing::settings);
        let receivers = roster.iter().enumerate().filter(|(_, (_, role))| *role == Role::Decode);
        let receivers = receivers.map(|(i, (url, _))| (url.as_str().to_owned(), receiver(i))).collect();
        settings.roles = Some(RoleSettings { workers: roster, prefill_policy: policy, announced, readiness });
        let pairs = PairSettings::default();
        settings.router.pairs =
            Some(PairSettings { connector: self.connector, receivers: Arc::new(receivers), ..pairs });
        settings
    }
}

impl Setting {
    pub(crate) fn prefill(&self, i: usize) -> &Worker {
        &self.site.workers[i]
    }

    pub(crate) fn decode(&self, i: usize) -> &Worker {
        &self.site.workers[self.prefills + i]
    }

    pub(crate) fn no_violation(&self) {
        assert_eq!(self.exchange.violations(), std::collections::BTreeMap::new());
    }

    pub(crate) async fn pairs(&self, outcome: &str) -> u64 {
        self.site.metric("forebay_pd_pairs_total", &[&format!("outcome=\"{outcome}\"")]).await
    }

    pub(crate) async fn recomputes(&self, reason: &str) -> u64 {
        self.site.metric("forebay_pd_recomputes_total", &[&format!("reason=\"{reason}\"")]).await
    }
}

/// A prompt of about so many tokens.
pub(crate) fn completion(text: &str, max_tokens: u32, stream: bool) -> String {
    format!(r#"{{"model":"tiny","prompt":"{text}","max_tokens":{max_tokens},"stream":{stream}}}"#)
}

/// The text of an answer to a completion, whole or streamed.
pub(crate) fn text(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body).into_owned();
    let of = |json: &str| -> String {
        let value: serde_json::Value = serde_json::from_str(json).unwrap();
        value["choices"][0]["text"].as_str().unwrap_or_default().to_owned()
    };
    if text.starts_with('{') {
        return of(&text);
    }
    text.lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .filter(|json| *json != "[DONE]")
        .map(of)
        .collect()
}

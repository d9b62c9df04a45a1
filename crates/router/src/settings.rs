//! The knobs of the request path.

use std::time::Duration;

use forebay_dial::Dialer;
use forebay_policy::HashKeyKind;
use http::HeaderName;

use crate::admission::AdmissionSettings;
use crate::aliases::Aliases;
use crate::pairs::PairSettings;
use crate::retry::RetrySettings;

/// Knobs of the request path.
#[derive(Debug, Clone)]
pub struct RouterSettings {
    /// Largest request body, in bytes.
    pub max_payload_bytes: usize,
    /// Opens connections to workers.
    pub dialer: Dialer,
    /// Time limits.
    pub times: TimeSettings,
    /// How many requests at once.
    pub admission: AdmissionSettings,
    /// Retries.
    pub retry: RetrySettings,
    /// Prefill/decode pairs; `None` if workers have no roles.
    pub pairs: Option<PairSettings>,
    /// Other names of models.
    pub aliases: Aliases,
    /// Sources of the hash key, in order.
    pub hash_key: Vec<HashKeyKind>,
    /// Whether `X-Forwarded-For` tells who the client is.
    pub trust_forwarded: bool,
    /// Whether clients may send what steers an engine.
    pub trust_client_internals: bool,
    /// Whether a client may name the data-parallel rank that serves its request.
    pub honor_client_dp_rank: bool,
    /// Whether unknown paths below vLLM's prefixes go to any worker.
    pub forward_unknown: bool,
    /// Whether responses tell which worker was chosen, and why.
    pub expose_routing_headers: bool,
    /// Headers that give the request id, the first that is there.
    pub request_id_headers: Vec<HeaderName>,
    /// Key that the router shows to workers when it acts on its own.
    pub api_key: Option<Secret>,
    /// Key that gives the admin right.
    pub admin_api_key: Option<Secret>,
}

/// Time limits of the request path. `None` is no limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimeSettings {
    /// Longest wait for a connection to a worker, at each address that its name has.
    pub connect: Duration,
    /// Longest wait for the head of a worker's answer. A long prompt may take minutes before it comes.
    pub response_header: Option<Duration>,
    /// Longest time without a byte inside an answer, and either way in a tunnel.
    pub stream_idle: Option<Duration>,
    /// Longest time from the request's head to the end of the answer, all attempts together.
    pub request: Option<Duration>,
    /// Longest wait for the whole body of a request; of an upload, for each piece that comes.
    pub client_body: Option<Duration>,
}

impl Default for TimeSettings {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            response_header: None,
            stream_idle: Some(Duration::from_secs(300)),
            request: None,
            client_body: Some(Duration::from_secs(300)),
        }
    }
}

/// A text that never shows in logs.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps it.
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The text itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

impl Default for RouterSettings {
    fn default() -> Self {
        Self {
            max_payload_bytes: 512 * 1024 * 1024,
            dialer: Dialer::default(),
            times: TimeSettings::default(),
            admission: AdmissionSettings::default(),
            retry: RetrySettings::default(),
            pairs: None,
            aliases: Aliases::default(),
            hash_key: HASH_SOURCES.map(|(_, kind)| kind).to_vec(),
            trust_forwarded: false,
            trust_client_internals: false,
            honor_client_dp_rank: false,
            forward_unknown: true,
            expose_routing_headers: false,
            request_id_headers: ["x-request-id", "x-correlation-id", "x-trace-id", "request-id"]
                .map(HeaderName::from_static)
                .to_vec(),
            api_key: None,
            admin_api_key: None,
        }
    }
}

/// Sources of the hash key by name, in the default order.
pub const HASH_SOURCES: [(&str, HashKeyKind); 6] = [
    ("x-session-id", HashKeyKind::SessionHeader),
    ("x-user-id", HashKeyKind::UserHeader),
    ("body", HashKeyKind::Body),
    ("authorization", HashKeyKind::Authorization),
    ("client-ip", HashKeyKind::ClientIp),
    ("body-hash", HashKeyKind::BodyHash),
];

/// The source of this name.
pub fn hash_source(name: &str) -> Option<HashKeyKind> {
    HASH_SOURCES.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
}

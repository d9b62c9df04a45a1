//! Which headers cross from one side to the other, and how a request's head is written to a worker.

use std::sync::Arc;

use forebay_openai::strip;
use forebay_policy::Choice;
use forebay_workers::WorkerUrl;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;

use crate::failure::Failure;
use crate::settings::RouterSettings;
use crate::upstream::Expected;
use crate::upstream::head::tokens;

/// Whether a header is of the client's connection, or one that is written anew.
fn stays_behind(name: &HeaderName) -> bool {
    match *name {
        header::CONNECTION
        | header::HOST
        | header::CONTENT_LENGTH
        | header::TRANSFER_ENCODING
        | header::UPGRADE
        | header::TE
        | header::TRAILER
        | header::EXPECT
        | header::PROXY_AUTHORIZATION => true,
        _ => matches!(name.as_str(), "keep-alive" | "proxy-connection"),
    }
}

/// Name of the request id, to workers and to clients.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Names the worker that a worker-wide request is meant for, and in a response the one that was chosen.
pub(crate) const TARGET: HeaderName = HeaderName::from_static("x-forebay-worker");

/// Names the trial that a request belongs to. It never goes on.
const TRIAL: HeaderName = HeaderName::from_static("x-forebay-trial");

/// Longest name of a trial, in bytes.
pub const TRIAL_NAME_LIMIT: usize = 128;

/// Says in a response why that one was chosen.
const DECISION: HeaderName = HeaderName::from_static("x-forebay-decision");

/// Names the data-parallel rank that a request is for.
pub(crate) const RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");

/// What clients may say that steers an engine.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Trust {
    /// Everything.
    pub internals: bool,
    /// Their data-parallel rank.
    pub rank: bool,
}

/// Of two ranks nobody knows which one is meant.
fn names_one_rank(headers: &HeaderMap) -> bool {
    headers.get_all(RANK).iter().count() == 1
}

impl Trust {
    /// As the settings say.
    pub(crate) fn of(settings: &RouterSettings) -> Self {
        Self { internals: settings.trust_client_internals, rank: settings.honor_client_dp_rank }
    }

    /// The rank that the headers name, which [`strip`] has left there. As vLLM does, what is no number is not read.
    pub(crate) fn rank_of(self, headers: &HeaderMap) -> Option<u32> {
        let may_name = self.internals || self.rank;
        headers.get(RANK).filter(|_| may_name && names_one_rank(headers))?.to_str().ok()?.trim().parse().ok()
    }
}

/// What was taken out of a request's head.
pub(crate) struct Stripped {
    /// What could steer an engine, in a form fit for a metric label.
    pub internals: Vec<&'static str>,
    /// The name of the request's trial, if there is one.
    pub trial: Result<Option<Arc<str>>, Failure>,
}

/// Takes out what is not for workers: what the client's `Connection` header names, what could steer an engine, the trial.
pub(crate) fn strip(headers: &mut HeaderMap, trust: Trust) -> Stripped {
    // One walk over a request's few headers is cheaper than a lookup of each that matters.
    let (mut names_others, mut internal, mut names_trial) = (false, false, false);
    for (name, value) in headers.iter() {
        match name.as_str().as_bytes()[0] {
            b'c' => names_others |= *name == header::CONNECTION,
            b'x' => {
                internal |= label(name, value).is_some();
                names_trial |= *name == TRIAL;
            }
            _ => {}
        }
    }
    let trial = if names_trial { take_trial(headers) } else { Ok(None) };
    if names_others {
        strip_named(headers);
    }
    let internals = if internal { strip_internals(headers, trust) } else { Vec::new() };
    Stripped { internals, trial }
}

/// Takes out the name of the request's trial.
fn take_trial(headers: &mut HeaderMap) -> Result<Option<Arc<str>>, Failure> {
    let is_one = headers.get_all(TRIAL).iter().count() == 1;
    let given = headers.remove(TRIAL);
    let name = given.as_ref().filter(|_| is_one).map(|given| given.as_bytes().trim_ascii());
    let fits = |name: &&[u8]| {
        (1..=TRIAL_NAME_LIMIT).contains(&name.len()) && name.iter().all(|byte| (b' '..=b'~').contains(byte))
    };
    let name = name.filter(fits).and_then(|name| std::str::from_utf8(name).ok());
    name.map(|name| Some(name.into())).ok_or(Failure::TrialInvalid)
}

/// Takes out what could steer an engine.
fn strip_internals(headers: &mut HeaderMap, trust: Trust) -> Vec<&'static str> {
    let names_rank = trust.rank && names_one_rank(headers);
    let stays = |name: &HeaderName| trust.internals || (names_rank && *name == RANK);
    let mut stripped = Vec::new();
    let of = |(name, value): (&HeaderName, &HeaderValue)| Some((name.clone(), label(name, value)?));
    let internal: Vec<(HeaderName, &'static str)> =
        headers.iter().filter(|(name, _)| !stays(name)).filter_map(of).collect();
    for (name, label) in internal {
        headers.remove(name);
        stripped.push(label);
    }
    stripped
}

/// The protocol that a client asks to go on with on its connection, if it does; not HTTP/2, which many ask for by habit
/// and take a plain answer for.
pub(crate) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let protocol = headers.get(header::UPGRADE)?;
    let says_so = headers
        .get_all(header::CONNECTION)
        .iter()
        .any(|value| tokens(value.as_bytes()).any(|token| token.eq_ignore_ascii_case(b"upgrade")));
    let is_http = tokens(protocol.as_bytes()).any(|token| token.eq_ignore_ascii_case(b"h2c"));
    (says_so && !is_http).then(|| apart(protocol))
}

fn strip_named(headers: &mut HeaderMap) {
    let stays =
        |token: &&[u8]| !token.eq_ignore_ascii_case(b"keep-alive") && !token.eq_ignore_ascii_case(b"close");
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|value| tokens(value.as_bytes()).filter(stays))
        .filter_map(|token| HeaderName::from_bytes(token).ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
}

/// The request's id as the client gave it: in `x-request-id`, else in the first of `others`; and whether it was the
/// former.
pub(crate) fn given_id<'a>(headers: &'a HeaderMap, others: &[HeaderName]) -> Option<(&'a HeaderValue, bool)> {
    // Names that differ mostly differ in length already: one bit says whether a name is worth a comparison.
    let bit = |name: &str| 1_u64 << (name.len() % 64);
    let lengths = others.iter().fold(bit("x-request-id"), |lengths, name| lengths | bit(name.as_str()));
    let mut found: Option<(usize, &HeaderValue)> = None;
    for (name, value) in headers {
        let name = name.as_str();
        if lengths & bit(name) == 0 {
            continue;
        }
        if name == "x-request-id" {
            return Some((value, true));
        }
        let place = others.iter().position(|wanted| wanted.as_str() == name);
        if let Some(place) = place.filter(|place| found.is_none_or(|(best, _)| *place < best)) {
            found = Some((place, value));
        }
    }
    found.map(|(_, value)| (value, false))
}

/// Whether a request id is one by which engines find each other: no client may send such a one.
pub(crate) fn steers(id: &HeaderValue) -> bool {
    strip::is_engine_id(id.as_bytes())
}

/// A value in memory of its own, that does not keep the request which it came with.
pub(crate) fn apart(value: &HeaderValue) -> HeaderValue {
    HeaderValue::from_bytes(value.as_bytes()).unwrap_or_else(|_| value.clone())
}

/// The label of a header that could steer an engine.
fn label(name: &HeaderName, value: &HeaderValue) -> Option<&'static str> {
    let rest = name.as_str().strip_prefix("x-")?;
    if rest == "request-id" {
        return steers(value).then_some("x-request-id");
    }
    if rest == "data-parallel-rank" {
        Some("x-data-parallel-rank")
    } else if rest.starts_with("prefiller-") {
        Some("x-prefiller-*")
    } else if rest.starts_with("gateway-") {
        Some("x-gateway-*")
    } else if rest.starts_with("encoder-") {
        Some("x-encoder-*")
    } else {
        None
    }
}

/// How the length of a request's body is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Length {
    /// There is none, and none is due.
    None,
    Exact(u64),
    /// Nobody knows yet.
    Chunked,
}

/// What a request's head says apart from the client's own headers.
#[derive(Clone, Copy)]
pub(crate) struct Written<'a> {
    /// Method, target and headers of the client.
    pub parts: &'a Parts,
    /// The request's id, if the client sent none.
    pub made_id: Option<&'a HeaderValue>,
    /// Whether that id takes the place of the one that the client sent.
    pub replaces_id: bool,
    /// Replaces the client's target.
    pub path: Option<&'static str>,
    /// Length of the body, if there is one or one is due.
    pub length: Length,
    /// The protocol that the connection is to speak from then on.
    pub protocol: Option<&'a HeaderValue>,
    /// Replaces the client's `Authorization`: `Some(None)` takes it out.
    pub authorization: Option<Option<&'a str>>,
}

impl Written<'_> {
    /// The request's id.
    pub(crate) fn id(&self) -> &[u8] {
        self.made_id.or_else(|| self.parts.headers.get(REQUEST_ID)).map_or(&[], HeaderValue::as_bytes)
    }

    /// How its answer is to be read.
    pub(crate) fn expected(&self) -> Expected<'_> {
        Expected { method: &self.parts.method, switches: self.protocol.is_some() }
    }

    /// Writes the head for this worker.
    pub(crate) fn write(&self, url: &WorkerUrl, dp_rank: Option<u32>, out: &mut Vec<u8>) {
        let given = || self.parts.uri.path_and_query().map_or("/", |target| target.as_str());
        let target = self.path.unwrap_or_else(given);
        out.reserve(512);
        for piece in [
            self.parts.method.as_str(),
            " ",
            url.prefix(),
            target,
            " HTTP/1.1\r\nhost: ",
            url.authority(),
            "\r\n",
        ] {
            out.extend_from_slice(piece.as_bytes());
        }
        for (name, value) in &self.parts.headers {
            let replaced =
                self.authorization.is_some() && (*name == header::AUTHORIZATION || *name == TARGET);
            let is_rank = dp_rank.is_some() && *name == RANK;
            let is_old_id = self.replaces_id && *name == REQUEST_ID;
            if !replaced && !is_rank && !is_old_id && !stays_behind(name) {
                line(out, name.as_str(), value.as_bytes());
            }
        }
        if let Some(rank) = dp_rank {
            line(out, RANK.as_str(), itoa::Buffer::new().format(rank).as_bytes());
        }
        if let Some(id) = self.made_id {
            line(out, REQUEST_ID.as_str(), id.as_bytes());
        }
        if let Some(Some(key)) = self.authorization {
            line(out, "authorization", [b"Bearer ", key.as_bytes()].concat().as_slice());
        }
        match self.length {
            Length::None => {}
            Length::Exact(length) => {
                line(out, "content-length", itoa::Buffer::new().format(length).as_bytes());
            }
            Length::Chunked => line(out, "transfer-encoding", b"chunked"),
        }
        if let Some(protocol) = self.protocol {
            line(out, "connection", b"Upgrade");
            line(out, "upgrade", protocol.as_bytes());
        }
        out.extend_from_slice(b"\r\n");
    }
}

fn line(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Characters of a request id of the router's own.
pub(crate) const ID_LENGTH: usize = 32;

/// A request id: hexadecimal digits of two numbers that together were not used before.
pub(crate) fn id(nonce: u64, count: u64) -> [u8; ID_LENGTH] {
    let mut text = [0; ID_LENGTH];
    hex(nonce, &mut text[..16]);
    hex(count, &mut text[16..]);
    text
}

fn hex(number: u64, out: &mut [u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (pair, byte) in out.chunks_exact_mut(2).zip(number.to_be_bytes()) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
}

/// Tells the client which worker was chosen, and why.
pub(crate) fn expose(headers: &mut HeaderMap, worker: &str, choice: &Choice) {
    let decision = format!(
        "{}; matched={}/{}; uncached={}/{}",
        choice.reason, choice.matched, choice.key_len, choice.uncached_tokens, choice.prompt_tokens
    );
    for (name, value) in [(TARGET, worker), (DECISION, decision.as_str())] {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    }
}

/// Whether the body behind these headers is a stream of events.
pub(crate) fn is_event_stream(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(headers: &[(&'static str, &'static str)]) -> Parts {
        let mut request = http::Request::post("/v1/x?beta=true");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn written(parts: &Parts, url: &str) -> String {
        let mut out = Vec::new();
        let id = HeaderValue::from_static("id-1");
        Written {
            parts,
            made_id: Some(&id),
            replaces_id: false,
            path: None,
            length: Length::Exact(7),
            protocol: None,
            authorization: None,
        }
        .write(&url.parse().unwrap(), None, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_head_is_the_clients_less_what_belongs_to_its_connection() {
        let mut parts = parts(&[
            ("host", "public"),
            ("connection", "keep-alive, x-hop"),
            ("x-hop", "1"),
            ("accept", "a"),
            ("accept", "b"),
            ("transfer-encoding", "chunked"),
        ]);
        strip(&mut parts.headers, Trust::default());
        let head = written(&parts, "http://w:1/prefix");
        assert_eq!(
            head,
            "POST /prefix/v1/x?beta=true HTTP/1.1\r\nhost: w:1\r\naccept: a\r\naccept: b\r\nx-request-id: id-1\r\ncontent-length: 7\r\n\r\n"
        );
    }

    #[test]
    fn what_steers_engines_is_taken_out_unless_clients_are_trusted() {
        let internal = [
            ("x-data-parallel-rank", "1"),
            ("X-Data-Parallel-Rank", "2"),
            ("x-prefiller-host-port", "x"),
            ("x-gateway-a", "y"),
        ];
        let mut untrusted = parts(&internal).headers;
        let mut labels = strip(&mut untrusted, Trust::default()).internals;
        labels.sort_unstable();
        assert_eq!(labels, ["x-data-parallel-rank", "x-data-parallel-rank", "x-gateway-*", "x-prefiller-*"]);
        assert!(untrusted.is_empty());
        let mut trusted = parts(&internal).headers;
        let trust = Trust { internals: true, rank: false };
        assert!(strip(&mut trusted, trust).internals.is_empty() && trusted.len() == 4);
        assert_eq!(trust.rank_of(&trusted), None, "two ranks are none");
    }

    #[test]
    fn the_trial_is_taken_out_whoever_sent_it_and_however() {
        let strip = |values: &[&'static str], trust| {
            let mut headers = parts(&[("connection", "x-forebay-trial")]).headers;
            values.iter().for_each(|value| _ = headers.append(TRIAL, HeaderValue::from_static(value)));
            let trial = super::strip(&mut headers, trust).trial;
            assert!(!headers.contains_key(TRIAL));
            trial
        };
        let long: &'static str = "x".repeat(TRIAL_NAME_LIMIT + 1).leak();
        for trust in [Trust::default(), Trust { internals: true, rank: true }] {
            assert_eq!(strip(&[], trust), Ok(None));
            assert_eq!(strip(&["t 1"], trust), Ok(Some("t 1".into())));
            assert_eq!(strip(&[&long[1..]], trust).map(|name| name.map(|name| name.len())), Ok(Some(128)));
            for odd in [&["a", "a"][..], &[""], &[" "], &[long], &["a\tb"]] {
                assert_eq!(strip(odd, trust), Err(Failure::TrialInvalid), "{odd:?}");
            }
        }
    }

    #[test]
    fn a_worker_is_told_one_rank_the_one_that_was_chosen() {
        let mut honoured = parts(&[("x-data-parallel-rank", "1"), ("x-gateway-a", "y")]);
        let trust = Trust { internals: false, rank: true };
        assert_eq!(strip(&mut honoured.headers, trust).internals, ["x-gateway-*"]);
        assert_eq!(trust.rank_of(&honoured.headers), Some(1));
        let mut out = Vec::new();
        let head = Written {
            parts: &honoured,
            made_id: None,
            replaces_id: false,
            path: None,
            length: Length::None,
            protocol: None,
            authorization: None,
        };
        head.write(&"http://w:1".parse().unwrap(), Some(3), &mut out);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.matches("rank: ").count(), 1, "{text}");
        assert!(text.contains("\r\nx-data-parallel-rank: 3\r\n"), "{text}");
        for odd in ["abc", "-1", "1.0", ""] {
            assert_eq!(trust.rank_of(&parts(&[("x-data-parallel-rank", odd)]).headers), None, "{odd}");
        }
    }

    #[test]
    fn ids_are_thirty_two_digits() {
        assert_eq!(&id(0xab, 1), b"00000000000000ab0000000000000001");
    }
}

//! Every answer that the router gives instead of a worker, and the one table from failure to status, body and header.

use bytes::Bytes;
use forebay_openai::{Dialect, ErrorBody, Extra, SoFar};
use forebay_pd::{Bypass, LegKind};
use forebay_workers::Invariant;
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{HeaderName, Response, StatusCode};

use crate::outcome::Outcome;

/// Carries the machine name of a failure.
pub(crate) const FAILURE: HeaderName = HeaderName::from_static("x-forebay-failure");

/// Why the router answers by itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// No such path.
    #[error("no such path")]
    NotFound,
    /// The path exists, but not for this method.
    #[error("this path does not take this method; it takes {0}")]
    Method(&'static str),
    /// The admin right is missing.
    #[error(
        "this needs the admin right: send 'Authorization: Bearer <admin-api-key>', or ask from this machine without Origin and forwarding headers"
    )]
    Forbidden,
    /// The body is larger than the limit.
    #[error("the request body is larger than the limit of {limit} bytes")]
    BodyTooLarge {
        /// `--max-payload-size`
        limit: usize,
    },
    /// The body cannot be understood, so that nobody could say what is in it.
    #[error("the request body is not valid: {0}")]
    BodyBroken(String),
    /// The body did not come to its end.
    #[error("the request body broke off")]
    BodyCut,
    /// No worker serves the model.
    #[error("The model `{0}` does not exist.")]
    UnknownModel(String),
    /// No model was named, and there are several.
    #[error("name a model: the workers behind this router serve several")]
    ModelNeeded,
    /// The client insists on a data-parallel rank that no worker of the model has.
    #[error("data_parallel_rank {0} is out of range: no worker of the model has it")]
    RankUnknown(u32),
    /// A worker's ranks changed again and again.
    #[error("the data-parallel ranks of the workers are changing; try again")]
    RanksMoved,
    /// A worker-wide request that is meant for one worker names none of them.
    #[error("name one of the workers in the header x-forebay-worker, as listed by GET /workers")]
    TargetNeeded,
    /// The header that names a trial does not.
    #[error("x-forebay-trial is given once, as a name of 1 to 128 printable ASCII characters")]
    TrialInvalid,
    /// Nobody could be chosen or reached.
    #[error("no worker can take the request now")]
    PoolExhausted {
        /// Attempts after the first.
        retries: u64,
        /// Workers of the model.
        pool_size: u64,
        /// Of these, with an open circuit breaker.
        open_circuits: u64,
        /// Of these, not healthy.
        unhealthy: u64,
    },
    /// Too many requests are under way and waiting.
    #[error("the router has as many requests as it may have; try again")]
    Overloaded,
    /// The request waited too long for a place.
    #[error("the request waited too long to be admitted")]
    QueueTimeout,
    /// No connection to the one worker that is meant.
    #[error("the worker cannot be reached")]
    WorkerUnreachable,
    /// A time limit passed.
    #[error("the worker took too long: {0}")]
    WorkerTimeout(Stage),
    /// The request's body did not come in time.
    #[error("the request body did not come in time")]
    BodyTimeout,
    /// A leg of a prefill/decode pair took too long.
    #[error("the {} leg of a prefill/decode pair took longer than {timeout_secs} s", leg.as_str())]
    PairTimeout {
        /// Which one.
        leg: LegKind,
        /// The limit, in whole seconds.
        timeout_secs: u64,
        /// The pair's id.
        room: u64,
    },
    /// The workers cannot do without a hand-over, and this cannot be handed over.
    #[error(
        "the workers behind this router hand every prompt over from one to another, which cannot be done with this request: {}",
        .0.as_str()
    )]
    Unpairable(Bypass),
    /// What went wrong for a prefill/decode pair.
    #[error("{cause}")]
    InPair {
        /// The pair's id.
        room: u64,
        /// What it was.
        cause: Box<Self>,
    },
    /// The answer broke off. Told inside the answer.
    #[error("the worker's connection ended inside its answer")]
    WorkerDiedMidStream,
    /// The router ran out of descriptors, ports or buffers.
    #[error("the router is out of resources: {0}")]
    OutOfResources(String),
    /// The process ends, and has waited long enough.
    #[error("the router is about to end, and the time for answers is over")]
    Drained,
    /// The worker's connection ended before its answer began.
    #[error("the worker's connection ended before its answer began")]
    WorkerDied,
    /// What holds whatever happens did not: a defect of the router, which the request must not be routed by.
    #[error(transparent)]
    PolicyInvariant(#[from] Invariant),
    /// The worker answered something that is no HTTP.
    #[error("the worker's answer is no valid HTTP response: {0}")]
    InvalidResponse(String),
}

/// What took too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The connection.
    Connect,
    /// The head of the answer.
    Headers,
    /// The next piece of the answer.
    Stream,
    /// All of it.
    Request,
}

impl Stage {
    /// Name in answers.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Headers => "headers",
            Self::Stream => "stream",
            Self::Request => "request",
        }
    }
}

impl std::fmt::Display for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A row of the table.
struct Row {
    status: StatusCode,
    /// vLLM's word for the kind, where it differs from the one that goes with the status.
    kind: Option<&'static str>,
    machine: Option<&'static str>,
    outcome: Outcome,
}

impl Failure {
    #[expect(clippy::too_many_lines, reason = "a table: one row per failure")]
    fn row(&self) -> Row {
        use Outcome as O;
        let row = |status, machine, outcome| Row { status, kind: None, machine, outcome };
        match self {
            Self::NotFound => row(StatusCode::NOT_FOUND, None, O::Refused),
            Self::Method(_) => row(StatusCode::METHOD_NOT_ALLOWED, None, O::Refused),
            Self::Forbidden => row(StatusCode::FORBIDDEN, Some("router_admin_right_missing"), O::Refused),
            Self::BodyTooLarge { .. } => {
                row(StatusCode::PAYLOAD_TOO_LARGE, Some("router_body_too_large"), O::Refused)
            }
            Self::BodyBroken(_) => row(StatusCode::BAD_REQUEST, Some("router_body_invalid"), O::Refused),
            Self::BodyCut => row(StatusCode::BAD_REQUEST, Some("router_body_cut"), O::Refused),
            Self::UnknownModel(_) => row(StatusCode::NOT_FOUND, Some("router_model_unknown"), O::Refused),
            Self::ModelNeeded => row(StatusCode::BAD_REQUEST, Some("router_model_needed"), O::Refused),
            Self::RankUnknown(_) => row(StatusCode::BAD_REQUEST, Some("router_rank_unknown"), O::Refused),
            Self::RanksMoved => {
                row(StatusCode::SERVICE_UNAVAILABLE, Some("router_ranks_moved"), O::PoolExhausted)
            }
            Self::TargetNeeded => row(StatusCode::BAD_REQUEST, Some("router_target_needed"), O::Refused),
            Self::TrialInvalid => row(StatusCode::BAD_REQUEST, Some("router_trial_invalid"), O::Refused),
            Self::PoolExhausted { .. } => {
                row(StatusCode::SERVICE_UNAVAILABLE, Some("router_pool_exhausted"), O::PoolExhausted)
            }
            Self::Overloaded => {
                row(StatusCode::TOO_MANY_REQUESTS, Some("router_overloaded"), O::AdmissionRefused)
            }
            Self::QueueTimeout => {
                row(StatusCode::REQUEST_TIMEOUT, Some("router_queue_timeout"), O::QueueTimeout)
            }
            Self::WorkerUnreachable => {
                row(StatusCode::BAD_GATEWAY, Some("worker_unreachable"), O::WorkerUnreachable)
            }
            Self::WorkerTimeout(stage) => {
                let outcome = match stage {
                    Stage::Connect => O::ConnectTimeout,
                    Stage::Headers => O::HeadersTimeout,
                    Stage::Stream => O::Stalled,
                    Stage::Request => O::RequestTimeout,
                };
                row(StatusCode::GATEWAY_TIMEOUT, Some("worker_timeout"), outcome)
            }
            Self::PairTimeout { .. } => {
                row(StatusCode::GATEWAY_TIMEOUT, Some("pd_connector_timeout"), O::PairTimeout)
            }
            Self::Unpairable(_) => row(StatusCode::BAD_REQUEST, Some("router_unpairable"), O::Refused),
            Self::InPair { cause, .. } => cause.row(),
            Self::BodyTimeout => {
                row(StatusCode::REQUEST_TIMEOUT, Some("router_body_timeout"), O::ClientTimeout)
            }
            Self::WorkerDiedMidStream => {
                row(StatusCode::BAD_GATEWAY, Some("worker_died_mid_stream"), O::ResetMidStream)
            }
            Self::OutOfResources(_) => {
                row(StatusCode::SERVICE_UNAVAILABLE, Some("router_out_of_resources"), O::OutOfResources)
            }
            Self::Drained => row(StatusCode::SERVICE_UNAVAILABLE, Some("router_drained"), O::Drained),
            Self::WorkerDied => {
                row(StatusCode::BAD_GATEWAY, Some("worker_died_before_headers"), O::ResetBeforeHeaders)
            }
            Self::PolicyInvariant(_) => {
                row(StatusCode::INTERNAL_SERVER_ERROR, Some("router_policy_invariant"), O::PolicyInvariant)
            }
            Self::InvalidResponse(_) => {
                row(StatusCode::BAD_GATEWAY, Some("worker_invalid_response"), O::InvalidResponse)
            }
        }
    }

    /// How a request ends that fails so.
    pub fn outcome(&self) -> Outcome {
        self.row().outcome
    }

    /// The response, in the dialect of its route.
    pub fn response(&self, dialect: Dialect) -> Response<Bytes> {
        let row = self.row();
        let mut response = json(row.status, self.told(|body| body.to_json(dialect)));
        if let Some(machine) = row.machine {
            response.headers_mut().insert(FAILURE, HeaderValue::from_static(machine));
        }
        if *self == Self::Overloaded {
            // Seconds; a place may be free at any time.
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if let Self::Method(allowed) = self {
            response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
        }
        response
    }

    /// The last record of a stream that ends with this failure, in the dialect of its route.
    pub(crate) fn record(&self, dialect: Dialect, so_far: SoFar<'_>) -> Bytes {
        self.told(|body| body.to_record(dialect, so_far))
    }

    /// Has the error body written.
    fn told(&self, write: impl FnOnce(&ErrorBody<'_>) -> Bytes) -> Bytes {
        let row = self.row();
        let extra = self.extra();
        let message = self.to_string();
        let plain = ErrorBody::new(row.status.as_u16(), &message);
        write(&ErrorBody {
            kind: row.kind.unwrap_or(plain.kind),
            param: matches!(self, Self::UnknownModel(_) | Self::ModelNeeded).then_some("model"),
            failure: row.machine,
            extra: &extra,
            ..plain
        })
    }

    /// What programs are told beside the machine name.
    fn extra(&self) -> Vec<Extra<'static>> {
        match self {
            Self::PoolExhausted { retries, pool_size, open_circuits, unhealthy } => vec![
                Extra::Number("retries", *retries),
                Extra::Number("pool_size", *pool_size),
                Extra::Number("open_circuits", *open_circuits),
                Extra::Number("unhealthy", *unhealthy),
            ],
            Self::WorkerTimeout(stage) => vec![Extra::Text("stage", stage.as_str())],
            Self::Unpairable(why) => vec![Extra::Text("reason", why.as_str())],
            Self::PolicyInvariant(broken) => vec![Extra::Text("counter", broken.as_str())],
            Self::PairTimeout { leg, timeout_secs, room } => vec![
                Extra::Text("leg", leg.as_str()),
                Extra::Number("timeout_secs", *timeout_secs),
                Extra::Number("bootstrap_room", *room),
            ],
            Self::InPair { room, cause } => {
                let mut extra = cause.extra();
                extra.push(Extra::Number("bootstrap_room", *room));
                extra
            }
            Self::BodyTooLarge { limit } => vec![Extra::Number("limit_bytes", *limit as u64)],
            _ => Vec::new(),
        }
    }
}

/// A response of the router's own, in JSON.
pub(crate) fn json(status: StatusCode, body: Bytes) -> Response<Bytes> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(failure: &Failure, dialect: Dialect) -> String {
        String::from_utf8(failure.response(dialect).into_body().to_vec()).unwrap()
    }

    #[test]
    fn an_unknown_model_looks_as_from_vllm() {
        let failure = Failure::UnknownModel("x".to_owned());
        assert_eq!(
            text(&failure, Dialect::OpenAi),
            r#"{"error":{"message":"The model `x` does not exist.","type":"NotFoundError","param":"model","code":404},"forebay":{"failure":"router_model_unknown"}}"#
        );
        let body = text(&failure, Dialect::Anthropic);
        assert!(
            body.starts_with(r#"{"type":"error","error":{"type":"not_found_error","message":"The model"#),
            "{body}"
        );
    }

    #[test]
    fn an_exhausted_pool_says_how_large_it_is() {
        let failure = Failure::PoolExhausted { retries: 2, pool_size: 3, open_circuits: 1, unhealthy: 1 };
        let response = failure.response(Dialect::OpenAi);
        assert_eq!(response.status().as_u16(), 503);
        assert_eq!(response.headers()[FAILURE], "router_pool_exhausted");
        let fields = r#""forebay":{"failure":"router_pool_exhausted","retries":2,"pool_size":3,"open_circuits":1,"unhealthy":1}"#;
        assert!(text(&failure, Dialect::OpenAi).contains(fields));
    }
}

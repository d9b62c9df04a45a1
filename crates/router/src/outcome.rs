//! Every way a request can end. It alone feeds metrics and logs.

use http::StatusCode;

/// What an exchange says of its worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It did its work, even if the client had asked for nonsense.
    Success,
    /// It failed.
    Failure,
    /// Nothing: it was busy, or nobody knows whose fault it was.
    None,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The worker answered below 400, and the client got all of it.
    Completed,
    /// The worker answered 4xx other than 429.
    ClientError,
    /// The worker answered 5xx other than 503.
    WorkerError,
    /// The worker answered 429 or 503.
    WorkerOverloaded,
    /// The router refused the request: unknown path, model or method, no right, broken body.
    Refused,
    /// The router answered it itself.
    Own,
    /// No worker could be chosen, or none of those chosen could be reached.
    PoolExhausted,
    /// There were too many requests already.
    AdmissionRefused,
    /// It waited too long to be admitted.
    QueueTimeout,
    /// No connection to the worker that the request was meant for.
    WorkerUnreachable,
    /// No connection to a worker in time.
    ConnectTimeout,
    /// The head of the answer did not come in time.
    HeadersTimeout,
    /// The answer stalled.
    Stalled,
    /// The request took longer than it may.
    RequestTimeout,
    /// The client's body did not come in time.
    ClientTimeout,
    /// The worker reported a failure inside an event stream.
    ErrorInStream,
    /// The router ran out of file descriptors, ports or buffers.
    OutOfResources,
    /// The connection ended before the response began.
    ResetBeforeHeaders,
    /// What the worker sent was no HTTP response.
    InvalidResponse,
    /// The connection broke inside the response.
    ResetMidStream,
    /// The client left before the response began.
    ClientGoneBeforeHeaders,
    /// The client left inside the response.
    ClientGoneMidStream,
    /// The process ended, and had waited long enough.
    Drained,
    /// A leg of a prefill/decode pair took too long.
    PairTimeout,
    /// Something panicked.
    Panicked,
    /// An invariant of the router's own was found broken.
    PolicyInvariant,
}

impl Outcome {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 26] = [
        Self::Completed,
        Self::ClientError,
        Self::WorkerError,
        Self::WorkerOverloaded,
        Self::Refused,
        Self::Own,
        Self::PoolExhausted,
        Self::AdmissionRefused,
        Self::QueueTimeout,
        Self::WorkerUnreachable,
        Self::ConnectTimeout,
        Self::HeadersTimeout,
        Self::Stalled,
        Self::RequestTimeout,
        Self::ClientTimeout,
        Self::ErrorInStream,
        Self::OutOfResources,
        Self::ResetBeforeHeaders,
        Self::InvalidResponse,
        Self::ResetMidStream,
        Self::ClientGoneBeforeHeaders,
        Self::ClientGoneMidStream,
        Self::Drained,
        Self::PairTimeout,
        Self::Panicked,
        Self::PolicyInvariant,
    ];

    /// Name in metrics and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::ClientError => "client_error",
            Self::WorkerError => "worker_error",
            Self::WorkerOverloaded => "worker_overloaded",
            Self::Refused => "refused",
            Self::Own => "own",
            Self::PoolExhausted => "pool_exhausted",
            Self::AdmissionRefused => "admission_refused",
            Self::QueueTimeout => "queue_timeout",
            Self::WorkerUnreachable => "worker_unreachable",
            Self::ConnectTimeout => "connect_timeout",
            Self::HeadersTimeout => "headers_timeout",
            Self::Stalled => "stalled",
            Self::RequestTimeout => "request_timeout",
            Self::ClientTimeout => "client_timeout",
            Self::ErrorInStream => "error_in_stream",
            Self::OutOfResources => "out_of_resources",
            Self::ResetBeforeHeaders => "reset_before_headers",
            Self::InvalidResponse => "invalid_response",
            Self::ResetMidStream => "reset_mid_stream",
            Self::ClientGoneBeforeHeaders => "client_gone_before_headers",
            Self::ClientGoneMidStream => "client_gone_mid_stream",
            Self::Drained => "drained",
            Self::PairTimeout => "pd_connector_timeout",
            Self::Panicked => "panicked",
            Self::PolicyInvariant => "policy_invariant",
        }
    }

    /// What it says of the worker if its answer came whole. 429 and 503 are how vLLM says that another worker should be
    /// asked: it is busy, paused or scaling, and well.
    pub(crate) const fn verdict(self) -> Verdict {
        match self {
            Self::Completed | Self::ClientError => Verdict::Success,
            Self::WorkerError => Verdict::Failure,
            _ => Verdict::None,
        }
    }

    /// Of a response that the client got whole.
    pub fn of_status(status: StatusCode) -> Self {
        match status.as_u16() {
            429 | 503 => Self::WorkerOverloaded,
            400..=499 => Self::ClientError,
            500.. => Self::WorkerError,
            _ => Self::Completed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_places_in_the_list() {
        for (number, outcome) in Outcome::ALL.iter().enumerate() {
            assert_eq!(*outcome as usize, number);
        }
    }
}

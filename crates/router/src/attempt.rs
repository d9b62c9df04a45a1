//! One exchange with one worker, and what its failure is called. It chooses nobody and tries nobody else.

use std::io;
use std::pin::pin;
use std::sync::Arc;

use forebay_workers::blame::is_own_fault;
use forebay_workers::{Guard, Worker};

use crate::classify::Asked;
use crate::clock;
use crate::failure::{Failure, Stage};
use crate::headers::{self, Written};
use crate::metrics::RouterMetrics;
use crate::outcome::Outcome;
use crate::refusals::{REFUSAL_LIMIT, may_be_refusal};
use crate::settings::RouterSettings;
use crate::shard::Shard;
use crate::upload::Upload;
use crate::upstream::{Answer, Conn, ExchangeError, StreamedError};

/// What an exchange needs beside the worker and the request's body.
pub(crate) struct Attempt<'a> {
    pub shard: &'a Shard,
    pub settings: &'a RouterSettings,
    pub metrics: &'a RouterMetrics,
    pub head: &'a Written<'a>,
}

/// Why one attempt gave no answer.
pub(crate) enum AttemptError {
    /// No connection: the request has not left, so any other worker may have it.
    Unreachable(io::Error),
    /// The router itself lacked something.
    OutOfResources(io::Error),
    /// The connection failed with the request under way.
    Exchange(ExchangeError),
    /// The head of the answer did not come in time.
    Silence,
    /// The head came, but nothing more in time.
    Stalled,
    /// The request's body did not come.
    Body(Failure),
}

impl Attempt<'_> {
    /// One exchange with the worker. A kept connection may have died of age just now; if it did, and nothing of an
    /// answer had come, the request goes out once more on a new one: the worker never saw it. Nobody can be sure of that,
    /// so a request that must not or cannot come twice gets a new connection from the start.
    pub(crate) async fn with(&self, worker: &Arc<Worker>, asked: &Asked) -> Result<Answer, AttemptError> {
        let is_fresh = asked.once_only || asked.upload.is_some();
        let kept = if is_fresh { None } else { self.shard.idle.take(worker.host().number()) };
        if let Some(conn) = kept {
            match self.exchange(conn, worker, asked).await {
                Err(AttemptError::Exchange(ExchangeError::Silent { reused: true, .. })) => {
                    self.metrics.resends.inc();
                }
                result => return result,
            }
        }
        let conn = self.open(worker).await?;
        self.exchange(conn, worker, asked).await
    }

    /// One exchange with the worker, on a kept connection if there is one, and never a second one: for what may be read
    /// once only.
    pub(crate) async fn once(&self, worker: &Arc<Worker>, asked: &Asked) -> Result<Answer, AttemptError> {
        if asked.once_only {
            return self.with(worker, asked).await;
        }
        let conn = match self.shard.idle.take(worker.host().number()) {
            Some(conn) => conn,
            None => self.open(worker).await?,
        };
        self.exchange(conn, worker, asked).await
    }

    async fn open(&self, worker: &Worker) -> Result<Conn, AttemptError> {
        Conn::open(&self.settings.dialer, worker.url(), self.settings.times.connect).await.map_err(|error| {
            if is_own_fault(&error) {
                AttemptError::OutOfResources(error)
            } else {
                AttemptError::Unreachable(error)
            }
        })
    }

    async fn exchange(
        &self,
        conn: Conn,
        worker: &Arc<Worker>,
        asked: &Asked,
    ) -> Result<Answer, AttemptError> {
        if let Some(upload) = &asked.upload {
            // Boxed, since it is rare and would make every request's future larger.
            return Box::pin(self.upload(conn, worker, upload)).await;
        }
        let write = |out: &mut Vec<u8>| self.head.write(worker.url(), worker.dp_rank(), out);
        let home = (&self.shard.idle, worker.host().number());
        let mut exchange = pin!(conn.exchange(self.head.expected(), write, &asked.body, home));
        let exchanged = match self.settings.times.response_header {
            Some(limit) => {
                let within = tokio::time::timeout(limit, exchange.as_mut()).await;
                within.map_err(|_| AttemptError::Silence)?
            }
            None => exchange.await,
        };
        self.begun(exchanged.map_err(AttemptError::Exchange)?).await
    }

    /// One exchange with a body that is still coming. How long the head of the answer may take counts from when the worker
    /// has it, or takes in no more of it.
    async fn upload(
        &self,
        conn: Conn,
        worker: &Arc<Worker>,
        upload: &Upload,
    ) -> Result<Answer, AttemptError> {
        upload.begin();
        let write = |out: &mut Vec<u8>| self.head.write(worker.url(), worker.dp_rank(), out);
        let home = (&self.shard.idle, worker.host().number());
        let mut exchange = pin!(conn.exchange_streamed(self.head.expected(), write, upload, home));
        let exchanged = match self.settings.times.response_header {
            Some(limit) => {
                tokio::select! {
                    exchanged = exchange.as_mut() => exchanged,
                    () = upload.left_waiting(limit) => return Err(AttemptError::Silence),
                }
            }
            None => exchange.await,
        };
        let answer = exchanged.map_err(|error| match error {
            StreamedError::Exchange(error) => AttemptError::Exchange(error),
            StreamedError::Source(failure) => AttemptError::Body(failure),
        })?;
        self.begun(answer).await
    }

    /// vLLM sends the head of a stream when it takes the request, and the first record when the prompt has been
    /// computed. As long as nothing but the head has come, another worker may still take the request over.
    async fn begun(&self, mut answer: Answer) -> Result<Answer, AttemptError> {
        if may_be_refusal(&answer) {
            // Boxed, since it is rare and would make every request's future larger.
            Box::pin(self.refused(&mut answer)).await?;
        } else if answer.status.is_success() && headers::is_event_stream(&answer.headers) {
            let mut begin = pin!(answer.body.begin());
            let begun = match self.settings.times.stream_idle {
                Some(limit) => {
                    let within = tokio::time::timeout(limit, begin.as_mut()).await;
                    within.map_err(|_| AttemptError::Stalled)?
                }
                None => begin.await,
            };
            begun.map_err(AttemptError::Exchange)?;
        }
        Ok(answer)
    }

    /// What may tell something of the worker is read before anybody asks what it tells. One that breaks off is none.
    async fn refused(&self, answer: &mut Answer) -> Result<(), AttemptError> {
        let mut reading = pin!(answer.body.read_ahead(REFUSAL_LIMIT));
        let read = match self.settings.times.stream_idle {
            Some(limit) => {
                let within = tokio::time::timeout(limit, reading.as_mut()).await;
                within.map_err(|_| AttemptError::Stalled)?
            }
            None => reading.await,
        };
        read.map(drop).map_err(|_| AttemptError::Exchange(ExchangeError::BeforeBody))
    }
}

impl AttemptError {
    /// Whether a kept connection may just have been too old: that says nothing of the worker.
    pub(crate) fn is_by_age(&self) -> bool {
        matches!(self, Self::Exchange(ExchangeError::Silent { reused: true, .. }))
    }

    /// What the client is told, with the worker charged for it if it may be its fault. The load falls.
    pub(crate) fn charged(self, guard: Guard) -> Failure {
        let by_age = self.is_by_age();
        let failure = self.told(guard.worker());
        match failure.outcome() {
            Outcome::OutOfResources | Outcome::Refused | Outcome::ClientTimeout => {}
            // The next probe decides, which is sooner and surer than a breaker.
            Outcome::WorkerUnreachable | Outcome::ConnectTimeout => guard.worker().host().suspect(),
            _ if by_age => {}
            _ => guard.broke(clock::now_ms()),
        }
        failure
    }

    /// What the client is told. Names of workers stay in the log.
    pub(crate) fn told(self, worker: &Worker) -> Failure {
        match self {
            Self::Unreachable(error) => {
                tracing::warn!(worker = worker.name(), %error, "worker cannot be reached");
                if error.kind() == io::ErrorKind::TimedOut {
                    return Failure::WorkerTimeout(Stage::Connect);
                }
                Failure::WorkerUnreachable
            }
            Self::OutOfResources(error) => {
                tracing::error!(%error, "out of resources");
                Failure::OutOfResources(error.kind().to_string())
            }
            Self::Silence => {
                tracing::warn!(worker = worker.name(), "no answer from worker in time");
                Failure::WorkerTimeout(Stage::Headers)
            }
            Self::Body(failure) => failure,
            Self::Stalled => {
                tracing::warn!(worker = worker.name(), "nothing of the answer's body in time");
                Failure::WorkerTimeout(Stage::Stream)
            }
            Self::Exchange(error) => {
                tracing::warn!(worker = worker.name(), %error, "no answer from worker");
                match error {
                    ExchangeError::Silent { .. } | ExchangeError::InsideHead | ExchangeError::BeforeBody => {
                        Failure::WorkerDied
                    }
                    ExchangeError::Head(error) => Failure::InvalidResponse(error.to_string()),
                    ExchangeError::Framing(error) => Failure::InvalidResponse(error.to_string()),
                }
            }
        }
    }
}

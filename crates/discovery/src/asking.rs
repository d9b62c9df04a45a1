//! One question to a worker, with a time limit: is it well, what does it serve, which version is it.
//!
//! Each question takes a connection of its own, so that an answer says that the worker still accepts them.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use forebay_dial::Dialer;
use forebay_workers::blame::is_own_fault;
use forebay_workers::{Models, Rest, ServedModel, WorkerUrl};
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::metrics::{self, Told};

/// Longest answer that is read, in bytes.
const ANSWER_LIMIT: usize = 8 * 1024 * 1024;

/// Asks workers on behalf of the router itself.
#[derive(Clone)]
pub struct Asker {
    dialer: Dialer,
    timeout: Duration,
    authorization: Option<String>,
}

/// What a worker says of its rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resting {
    /// Whether it rests.
    Says(bool),
    /// It knows no such question.
    Nothing,
    /// Nothing came in time, so that nothing new is known.
    NoAnswer,
}

/// Why there was no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The request could not be sent, or its answer not be read.
    #[error("{0}")]
    Failed(Box<dyn std::error::Error + Send + Sync>),
    /// The time limit passed.
    #[error("no answer in time")]
    Timeout,
}

impl Asker {
    /// With a time limit for each question, and the key to show, if any.
    pub fn new(dialer: Dialer, timeout: Duration, api_key: Option<&str>) -> Self {
        Self { dialer, timeout, authorization: api_key.map(|key| format!("Bearer {key}")) }
    }

    /// Whether the worker answers its health endpoint with a success, and if not, what it does instead; `None` if it could
    /// not be asked, for a reason of this process's own.
    pub async fn is_well(&self, url: &WorkerUrl, endpoint: &str) -> Option<Result<(), String>> {
        match self.get(url, endpoint).await {
            Ok((status, _)) if status.is_success() => Some(Ok(())),
            Ok((status, _)) => Some(Err(format!("{endpoint} answers {status}"))),
            Err(AskError::Failed(error)) if is_own_fault(&*error) => None,
            Err(error) => Some(Err(error.to_string())),
        }
    }

    /// Whether the worker rests; `Resting::Nothing` if it does not say, as vLLM outside of its development mode, where
    /// nobody can make it rest either.
    pub async fn rests(&self, url: &WorkerUrl, rest: Rest) -> Resting {
        #[derive(Deserialize)]
        struct Answer {
            #[serde(alias = "is_sleeping", alias = "is_paused")]
            rests: bool,
        }
        let path = match rest {
            Rest::Asleep => "/is_sleeping",
            Rest::Stopped => "/is_paused",
        };
        let Ok((status, body)) = self.get(url, path).await else { return Resting::NoAnswer };
        match serde_json::from_slice::<Answer>(&body) {
            Ok(Answer { rests }) if status.is_success() => Resting::Says(rests),
            _ => Resting::Nothing,
        }
    }

    /// What the worker serves; `None` if the answer did not come, so that nothing new is known.
    pub async fn models(&self, url: &WorkerUrl) -> Option<Models> {
        let (status, body) = self.get(url, "/v1/models").await.ok()?;
        Some(if status == StatusCode::OK { read_models(&body).unwrap_or(Models::Any) } else { Models::Any })
    }

    /// The worker's version, if it tells one; `None` if the answer did not come, so that nothing new is known.
    pub async fn version(&self, url: &WorkerUrl) -> Option<Option<String>> {
        #[derive(Deserialize)]
        struct Version {
            version: String,
        }
        let (_, body) = self.get(url, "/version").await.ok()?;
        Some(serde_json::from_slice::<Version>(&body).ok().map(|answer| answer.version))
    }

    /// What the worker's metrics tell, if it gives any.
    pub async fn metrics(&self, url: &WorkerUrl) -> Option<Told> {
        let (status, body) = self.get(url, "/metrics").await.ok()?;
        Some(metrics::read(std::str::from_utf8(&body).ok().filter(|_| status.is_success())?))
    }

    /// How many data-parallel ranks publish events about their prefix caches; `None` if none does, or nobody says.
    pub async fn event_sources(&self, url: &WorkerUrl) -> Option<u32> {
        let (status, body) = self.get(url, "/kv_event_sources").await.ok()?;
        metrics::read_event_sources(&body).filter(|_| status.is_success())
    }

    async fn get(&self, url: &WorkerUrl, path: &str) -> Result<(StatusCode, Bytes), AskError> {
        tokio::time::timeout(self.timeout, self.ask(url, path)).await.map_err(|_| AskError::Timeout)?
    }

    async fn ask(&self, url: &WorkerUrl, path: &str) -> Result<(StatusCode, Bytes), AskError> {
        let mut request =
            Request::get(format!("{}{path}", url.prefix())).header(header::HOST, url.authority());
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let request = request.body(Empty::<Bytes>::new()).map_err(|e| AskError::Failed(e.into()))?;
        let stream = self.dialer.open(url, self.timeout).await.map_err(|e| AskError::Failed(e.into()))?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|e| AskError::Failed(e.into()))?;
        let mut connection = pin!(connection);
        let mut asking = pin!(async {
            let answer = sender.send_request(request).await.map_err(|e| AskError::Failed(e.into()))?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), ANSWER_LIMIT).collect().await;
            Ok((status, body.map_err(AskError::Failed)?.to_bytes()))
        });
        tokio::select! {
            asked = &mut asking => asked,
            // What has come before the end is still to be read.
            _ended = &mut connection => asking.await,
        }
    }
}

/// The names in an answer of `/v1/models`; `None` if it is no such answer.
fn read_models(body: &[u8]) -> Option<Models> {
    #[derive(Deserialize)]
    struct List<'a> {
        #[serde(borrow)]
        data: Vec<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Entry {
        id: String,
        #[serde(default)]
        parent: Option<String>,
        #[serde(default)]
        root: Option<String>,
    }
    let list: List<'_> = serde_json::from_slice(body).ok()?;
    let served = list.data.into_iter().map(|raw| {
        let entry: Entry = serde_json::from_str(raw.get()).ok()?;
        Some(ServedModel {
            id: entry.id,
            parent: entry.parent,
            root: entry.root,
            entry: raw.get().to_owned(),
        })
    });
    served.collect::<Option<Vec<_>>>().map(Models::Named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_kept_as_the_worker_gave_them() {
        let body = br#"{"object":"list","data":[{"id":"m","root":"/m","parent":null,"max_model_len":8192},{"id":"l","parent":"m"}]}"#;
        let Some(Models::Named(served)) = read_models(body) else { panic!("not read") };
        assert_eq!(served[0].entry, r#"{"id":"m","root":"/m","parent":null,"max_model_len":8192}"#);
        assert_eq!((served[1].id.as_str(), served[1].parent.as_deref()), ("l", Some("m")));
    }

    #[test]
    fn what_is_no_list_of_models_is_not_read() {
        for body in [&b""[..], b"{}", b"[]", br#"{"data":[{}]}"#, br#"{"data":[{"id":1}]}"#] {
            assert_eq!(read_models(body), None);
        }
    }
}

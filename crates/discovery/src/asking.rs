//! One question to a worker, with a time limit: is it well, what does it serve, which version is it.
//!
//! Each question takes a connection of its own, so that an answer says that the worker still accepts them.

use std::time::Duration;

use bytes::Bytes;
use forebay_workers::blame::is_own_fault;
use forebay_workers::{Models, ServedModel, WorkerUrl};
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use serde_json::value::RawValue;

/// Longest answer that is read, in bytes.
const ANSWER_LIMIT: usize = 8 * 1024 * 1024;

/// Asks workers on behalf of the router itself.
#[derive(Clone)]
pub struct Asker {
    client: Client<HttpConnector, Empty<Bytes>>,
    timeout: Duration,
    authorization: Option<String>,
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
    pub fn new(timeout: Duration, api_key: Option<&str>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector);
        Self { client, timeout, authorization: api_key.map(|key| format!("Bearer {key}")) }
    }

    /// Whether the worker answers its health endpoint with a success; `None` if it could not be asked, for a reason of
    /// this process's own.
    pub async fn is_well(&self, url: &WorkerUrl, endpoint: &str) -> Option<bool> {
        match self.get(url, endpoint).await {
            Ok((status, _)) => Some(status.is_success()),
            Err(AskError::Failed(error)) if is_own_fault(&*error) => None,
            Err(AskError::Failed(_) | AskError::Timeout) => Some(false),
        }
    }

    /// What the worker serves; `None` if the answer did not come, so that nothing new is known.
    pub async fn models(&self, url: &WorkerUrl) -> Option<Models> {
        let (status, body) = self.get(url, "/v1/models").await.ok()?;
        Some(if status == StatusCode::OK { read_models(&body).unwrap_or(Models::Any) } else { Models::Any })
    }

    /// The worker's version, if it tells one.
    pub async fn version(&self, url: &WorkerUrl) -> Option<String> {
        #[derive(Deserialize)]
        struct Version {
            version: String,
        }
        let (_, body) = self.get(url, "/version").await.ok()?;
        serde_json::from_slice::<Version>(&body).ok().map(|answer| answer.version)
    }

    /// Tokens that the worker's prefix cache holds, if its metrics tell: of one rank, where several share the URL.
    pub async fn cache_tokens(&self, url: &WorkerUrl) -> Option<u64> {
        let (_, body) = self.get(url, "/metrics").await.ok()?;
        read_cache_tokens(std::str::from_utf8(&body).ok()?)
    }

    async fn get(&self, url: &WorkerUrl, path: &str) -> Result<(StatusCode, Bytes), AskError> {
        tokio::time::timeout(self.timeout, self.ask(url, path)).await.map_err(|_| AskError::Timeout)?
    }

    async fn ask(&self, url: &WorkerUrl, path: &str) -> Result<(StatusCode, Bytes), AskError> {
        let mut request = Request::get(format!("{url}{path}"));
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let request = request.body(Empty::new()).map_err(|e| AskError::Failed(e.into()))?;
        let answer = self.client.request(request).await.map_err(|e| AskError::Failed(e.into()))?;
        let status = answer.status();
        let body =
            Limited::new(answer.into_body(), ANSWER_LIMIT).collect().await.map_err(AskError::Failed)?;
        Ok((status, body.to_bytes()))
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

/// What `vllm:cache_config_info` says in its labels.
fn read_cache_tokens(metrics: &str) -> Option<u64> {
    let line = metrics.lines().find(|line| line.starts_with("vllm:cache_config_info{"))?;
    let number = |name: &str| -> Option<u64> {
        // The name of one label can end like another's.
        let starts = line.match_indices(name).map(|(at, _)| at);
        let value = starts.filter(|&at| line[..at].ends_with(['{', ','])).map(|at| &line[at + name.len()..]);
        value.filter_map(|value| value.split('"').next()?.parse().ok()).next()
    };
    let tokens = number("block_size=\"")?.checked_mul(number("num_gpu_blocks=\"")?)?;
    let caches = !line.contains("enable_prefix_caching=\"False\"");
    // A worker that keeps nothing holds nothing for long; 0 would mean that nothing is known.
    Some(if caches { tokens } else { tokens.min(1) })
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

    #[test]
    fn the_size_of_the_cache_is_read_from_the_labels() {
        let metrics = "# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{block_size=\"16\",\
            cache_dtype=\"auto\",cpu_num_gpu_blocks=\"7\",enable_prefix_caching=\"True\",engine=\"0\",\
            num_gpu_blocks=\"6000\"} 1.0\n";
        assert_eq!(read_cache_tokens(metrics), Some(96_000));
        assert_eq!(read_cache_tokens(&metrics.replace("True", "False")), Some(1));
        for bad in ["", "vllm:cache_config_info{} 1", &metrics.replace("\"6000\"", "\"None\"")] {
            assert_eq!(read_cache_tokens(bad), None);
        }
    }
}

//! Where decode workers take in blocks: one pair of ports for each tensor-parallel rank.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Deserialize;

/// Most tensor-parallel ranks of a worker.
const MOST_RANKS: usize = 64;

/// Where one decode worker takes in blocks.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receiver {
    receiver_host: String,
    receiver_init_port: Vec<u16>,
    receiver_alloc_port: Vec<u16>,
}

/// What is wrong with a receiver, or a list of them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// It is no JSON of the form.
    #[error("{0}")]
    Form(String),
    /// A host that is none.
    #[error("{0:?} is no host name or address")]
    Host(String),
    /// A rank has no port, only one, or the port 0; or there are too many.
    #[error("each rank needs one init port and one alloc port from 1 to 65535, for at most 64 ranks")]
    Ports,
}

/// Receivers by the URLs of their decode workers, from JSON of the form
/// `{"http://d1:8000":{"receiver_host":"10.0.0.9","receiver_init_port":[7300],"receiver_alloc_port":[7400]}}`.
///
/// # Errors
/// What is wrong with the first that cannot be used.
pub fn registry(json: &str) -> Result<BTreeMap<String, Receiver>, RegistryError> {
    let found: BTreeMap<String, Receiver> =
        serde_json::from_str(json).map_err(|error| RegistryError::Form(error.to_string()))?;
    found.values().try_for_each(Receiver::check)?;
    Ok(found)
}

/// Whether it may be a host name or an IP address.
pub fn is_host(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':');
    (1..=253).contains(&text.len()) && text.bytes().all(fits)
}

impl Receiver {
    /// One with these ports, in order of its ranks.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn new(host: &str, init: Vec<u16>, alloc: Vec<u16>) -> Result<Self, RegistryError> {
        let it =
            Self { receiver_host: host.to_owned(), receiver_init_port: init, receiver_alloc_port: alloc };
        it.check()?;
        Ok(it)
    }

    fn check(&self) -> Result<(), RegistryError> {
        let Self { receiver_host: host, receiver_init_port: init, receiver_alloc_port: alloc } = self;
        if !is_host(host) {
            return Err(RegistryError::Host(host.clone()));
        }
        let fits = (1..=MOST_RANKS).contains(&init.len()) && init.len() == alloc.len();
        if !fits || init.iter().chain(alloc).any(|port| *port == 0) {
            return Err(RegistryError::Ports);
        }
        Ok(())
    }

    /// Tensor-parallel ranks, on both sides: each of the prefill worker's says when it has written its part.
    pub fn ranks(&self) -> usize {
        self.receiver_init_port.len()
    }

    /// The order to write a prompt's blocks here under this id, and to tell the first token.
    pub fn order(&self, req_id: &str) -> Bytes {
        let Self { receiver_host: host, receiver_init_port: init, receiver_alloc_port: alloc } = self;
        let list = |ports: &[u16]| ports.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
        format!(
            r#"{{"ret_first_tok":true,"disagg_spec":{{"req_id":"{req_id}","receiver_host":"{host}","receiver_init_port":[{}],"receiver_alloc_port":[{}]}}}}"#,
            list(init),
            list(alloc)
        )
        .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_is_read_and_its_order_is_these_bytes() {
        let json = r#"{"http://d1:8000":{"receiver_host":"10.0.0.9","receiver_init_port":[7300,7301],"receiver_alloc_port":[7400,7401]},"http://d2:8000":{"receiver_host":"gpu-2","receiver_init_port":[1],"receiver_alloc_port":[65535]}}"#;
        let found = registry(json).unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), ["http://d1:8000", "http://d2:8000"]);
        let first = &found["http://d1:8000"];
        assert_eq!(first.ranks(), 2);
        assert_eq!(
            first.order("0af1"),
            r#"{"ret_first_tok":true,"disagg_spec":{"req_id":"0af1","receiver_host":"10.0.0.9","receiver_init_port":[7300,7301],"receiver_alloc_port":[7400,7401]}}"#
        );
        assert_eq!(Receiver::new("10.0.0.9", vec![7300, 7301], vec![7400, 7401]).as_ref(), Ok(first));
    }

    #[test]
    fn what_could_not_be_written_to_is_refused() {
        for (host, init, alloc) in [
            ("", vec![1], vec![1]),
            ("a\"b", vec![1], vec![1]),
            ("a b", vec![1], vec![1]),
            ("a", vec![], vec![]),
            ("a", vec![1, 2], vec![1]),
            ("a", vec![0], vec![1]),
            ("a", vec![1], vec![0]),
            ("a", vec![1; 65], vec![1; 65]),
        ] {
            assert!(Receiver::new(host, init.clone(), alloc.clone()).is_err(), "{host} {init:?} {alloc:?}");
        }
        for json in [
            "",
            "[]",
            r#"{"u":{"receiver_host":"h","receiver_init_port":[1]}}"#,
            r#"{"u":{"receiver_host":"h","receiver_init_port":[65536],"receiver_alloc_port":[1]}}"#,
            r#"{"u":{"receiver_host":"h","receiver_init_port":1,"receiver_alloc_port":[1]}}"#,
            r#"{"u":{"receiver_host":"h","receiver_init_port":[1],"receiver_alloc_port":[1],"x":1}}"#,
            r#"{"u":{"receiver_host":"","receiver_init_port":[1],"receiver_alloc_port":[1]}}"#,
        ] {
            assert!(registry(json).is_err(), "{json}");
        }
    }
}

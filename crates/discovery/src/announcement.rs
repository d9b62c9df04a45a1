//! What one announcement of a worker says. Knows nobody, and believes nothing that could not be reached as it is meant.

use std::net::SocketAddrV4;

use forebay_workers::{Role, WorkerUrl};
use serde::Deserialize;

use crate::allow::Range;

/// A worker's word on itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcement {
    /// Where clients' requests go.
    pub url: WorkerUrl,
    /// What it is for.
    pub role: Role,
    /// Where other workers reach it.
    pub kv_address: String,
}

/// Why an announcement is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Dropped {
    /// It is no map of what has to be there.
    #[error("it is no msgpack map with type, http_address and zmq_address")]
    Malformed,
    /// It is for something else than P or D.
    #[error("its type is neither P nor D")]
    Type,
    /// An address is not one that workers can read out of a request id.
    #[error("an address in it is not IPv4:PORT")]
    Address,
    /// An address is outside of what is allowed, whoever says it.
    #[error("an address in it is not in --discovery-allow")]
    Outside,
}

impl Dropped {
    /// Whether it is well but not allowed.
    pub fn is_refusal(self) -> bool {
        self == Self::Outside
    }
}

/// The members that matter; others may be there.
#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    http_address: &'a str,
    zmq_address: &'a str,
}

/// Nothing in an announcement is worth more levels.
const DEPTH: usize = 16;

impl Announcement {
    /// Reads one. What it names has to be in `allow`.
    ///
    /// # Errors
    /// Why it is to be dropped.
    pub fn read(payload: &[u8], allow: &[Range]) -> Result<Self, Dropped> {
        let wire = wire(payload).ok_or(Dropped::Malformed)?;
        let role = match wire.kind {
            "P" => Role::Prefill { bootstrap_port: None },
            "D" => Role::Decode,
            _ => return Err(Dropped::Type),
        };
        let (http, kv) = (address(wire.http_address, allow)?, address(wire.zmq_address, allow)?);
        let url = format!("http://{http}").parse().map_err(|_| Dropped::Address)?;
        Ok(Self { url, role, kv_address: kv.to_string() })
    }
}

/// A map: the same members in a list would be somebody else's message.
fn wire(payload: &[u8]) -> Option<Wire<'_>> {
    if !matches!(payload.first(), Some(0x80..=0x8f | 0xde | 0xdf)) {
        return None;
    }
    let mut reader = rmp_serde::Deserializer::from_read_ref(payload);
    reader.set_max_depth(DEPTH);
    Wire::deserialize(&mut reader).ok()
}

fn address(text: &str, allow: &[Range]) -> Result<SocketAddrV4, Dropped> {
    let address: SocketAddrV4 = text.parse().map_err(|_| Dropped::Address)?;
    if address.port() == 0 {
        return Err(Dropped::Address);
    }
    match allow.iter().any(|range| range.contains((*address.ip()).into())) {
        true => Ok(address),
        false => Err(Dropped::Outside),
    }
}

#[cfg(test)]
mod tests;

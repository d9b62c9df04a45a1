//! The bodies of both legs: the client's body with the splices of the connector's table. Sends nothing.

use bytes::Bytes;
use forebay_openai::{BodyError, Change, Splices};

use crate::connector::Connector;
use crate::endpoint::Endpoint;
use crate::hand_over::HandOver;
use crate::peer::Peer;
use crate::plan::LegKind;
use crate::room::Room;
use crate::table::{Edit, Row, Value};

/// What one attempt at a pair has in common on both legs.
#[derive(Debug, Clone, Copy)]
pub struct Pairing<'a> {
    /// How the blocks go over.
    pub connector: Connector,
    /// The API of the request.
    pub endpoint: Endpoint,
    /// The id of the pair.
    pub room: Room,
    /// The prefill worker's bootstrap server, if the legs are to name it.
    pub bootstrap: Option<Bootstrap<'a>>,
    /// The data-parallel ranks of both workers.
    pub ranks: Ranks,
    /// Prompts in the request; `None` if it is one that is no list.
    pub batch: Option<u64>,
    /// The request id that both legs have.
    pub request_id: &'a str,
}

/// Data-parallel ranks of a pair's workers, where ranks are told apart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ranks {
    /// The prefill worker's.
    pub prefill: Option<u32>,
    /// The decode worker's.
    pub decode: Option<u32>,
}

/// A prefill worker's bootstrap server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bootstrap<'a> {
    /// Host of the worker's URL, IPv6 without brackets.
    pub host: &'a str,
    /// Port, if it was given.
    pub port: Option<u16>,
}

/// What the decode leg goes by.
enum Given<'a> {
    Nothing,
    HandOver(&'a HandOver),
    Peer(&'a Peer),
}

impl Pairing<'_> {
    /// The body of the prefill leg.
    ///
    /// # Errors
    /// [`BodyError`] if the client's body cannot be walked.
    pub fn prefill(&self, body: &Bytes) -> Result<Bytes, BodyError> {
        self.leg(LegKind::Prefill, body, &Given::Nothing)
    }

    /// The body of a decode leg that follows the prefill leg. Whoever sends it must not send the hand-over again.
    ///
    /// # Errors
    /// [`BodyError`] if the client's body cannot be walked.
    pub fn decode(&self, body: &Bytes, hand_over: &HandOver) -> Result<Bytes, BodyError> {
        self.leg(LegKind::Decode, body, &Given::HandOver(hand_over))
    }

    /// The body of a decode leg that goes together with the prefill leg. `peer` is where the blocks come from, if the
    /// connector has to know it.
    ///
    /// # Errors
    /// [`BodyError`] if the client's body cannot be walked.
    pub fn decode_along(&self, body: &Bytes, peer: Option<&Peer>) -> Result<Bytes, BodyError> {
        self.leg(LegKind::Decode, body, &peer.map_or(Given::Nothing, Given::Peer))
    }

    fn leg(&self, leg: LegKind, body: &Bytes, given: &Given<'_>) -> Result<Bytes, BodyError> {
        let mut splices = Splices::default();
        for within in [None, Some("sampling_params")] {
            let changes = self.changes(leg, within, given);
            if !changes.is_empty() {
                splices.change(body, within.as_slice(), &changes)?;
            }
        }
        Ok(splices.apply(body))
    }

    fn changes(&self, leg: LegKind, within: Option<&str>, given: &Given<'_>) -> Vec<Change<'static>> {
        let holds = |row: &&Row| row.leg == leg && row.within == within && row.on.contains(&self.endpoint);
        let rows = self.connector.table().iter().flat_map(|rows| rows.iter()).filter(holds);
        let change = |row: &Row| {
            Some(match row.edit {
                Edit::Cut(name) => Change::Cut(name),
                Edit::Replace(name, json) => Change::Replace(name, Bytes::from_static(json.as_bytes())),
                Edit::Set(name, value) => Change::Set(name, self.value(value, given)?),
            })
        };
        rows.filter_map(change).collect()
    }

    fn value(&self, value: Value, given: &Given<'_>) -> Option<Bytes> {
        Some(match value {
            Value::Json(json) => Bytes::from_static(json.as_bytes()),
            Value::HandOver => match given {
                Given::Nothing => return None,
                Given::HandOver(hand_over) => hand_over.raw().clone(),
                Given::Peer(peer) => {
                    let engine_id = self.endpoint.engine_id(self.request_id);
                    peer.params(&engine_id, self.request_id).into()
                }
            },
            Value::PushOrder => format!(
                r#"{{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null,"transfer_id":"xfer-{}"}}"#,
                self.request_id
            )
            .into(),
            Value::RequestId => format!("\"{}\"", self.request_id).into(),
            // A host of a URL has no character that JSON would escape.
            Value::Host => {
                let host = self.bootstrap?.host;
                self.each(|_| format!("\"{host}\""))
            }
            Value::Port => {
                let port = self.bootstrap?.port.map_or_else(|| "null".to_owned(), |port| port.to_string());
                self.each(|_| port.clone())
            }
            Value::PrefillRank => self.ranks.prefill?.to_string().into(),
            Value::DecodeRank => self.ranks.decode?.to_string().into(),
            Value::Room => {
                self.bootstrap?;
                self.each(|index| self.room.of_prompt(index).to_string())
            }
        })
    }

    /// One value, or a list with one for each prompt of a batch.
    fn each(&self, value: impl Fn(u64) -> String) -> Bytes {
        match self.batch {
            None => value(0).into(),
            Some(prompts) => {
                let values: Vec<String> = (0..prompts).map(value).collect();
                format!("[{}]", values.join(",")).into()
            }
        }
    }
}

#[cfg(test)]
mod tests;

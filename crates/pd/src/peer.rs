//! Where a prefill worker is reached that pushes its blocks, learnt from an answer of its. Knows nothing of its health.

use crate::hand_over::Coordinates;

/// The coordinates of a prefill worker that pushes, as raw JSON values. They hold until it restarts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    engine_id: String,
    host: String,
    port: String,
    tp_size: String,
    pp_size: String,
}

impl Peer {
    /// From a hand-over; `None` if it lacks one that has no default.
    pub(crate) fn of(found: &Coordinates<'_>) -> Option<Self> {
        let text = |raw: Option<&[u8]>| Some(String::from_utf8_lossy(raw?).into_owned());
        Some(Self {
            engine_id: text(found.engine_id)?,
            host: text(found.host)?,
            port: text(found.port)?,
            tp_size: text(found.tp_size)?,
            pp_size: text(found.pp_size).unwrap_or_else(|| "1".to_owned()),
        })
    }

    /// What a decode leg is told that goes at the same time as the prefill leg.
    pub(crate) fn params(&self, engine_id: &str, request_id: &str) -> String {
        let Self { engine_id: engine, host, port, tp_size, pp_size } = self;
        format!(
            r#"{{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":{engine},"remote_host":{host},"remote_port":{port},"tp_size":{tp_size},"pp_size":{pp_size},"remote_request_id":"{engine_id}","transfer_id":"xfer-{request_id}"}}"#
        )
    }
}

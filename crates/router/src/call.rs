//! A request whose route is known, and its two ends: the router's own answer, or a worker's on its way. It asks nobody.

use std::net::SocketAddr;
use std::sync::Arc;

use forebay_openai::Renaming;
use forebay_workers::Reader;
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode, header};

use crate::aliases::Renamed;
use crate::failure::Failure;
use crate::forwarded::{Chosen, Forwarded};
use crate::headers;
use crate::incoming::Incoming;
use crate::outcome::Outcome;
use crate::patience::Patience;
use crate::record::Record;
use crate::records::Records;
use crate::relay::{Manner, Relay, ResponseBody};
use crate::report::{Prediction, Report};
use crate::route::{Class, Route};
use crate::shard::Shard;
use crate::stored::{Keeper, Stored};
use crate::tunnel::Tunnel;

/// A request whose route is known.
pub(crate) struct Call {
    pub peer: SocketAddr,
    pub route: Route,
    pub parts: Box<Parts>,
    /// Its id, if it came without one.
    pub made_id: Option<HeaderValue>,
    // Boxed like the head: together they are most of what a request is, and it is handed on often.
    pub record: Box<Record>,
    /// Whether it was held up before a worker was chosen.
    pub waited: bool,
    /// The protocol that its client wants to go on with.
    // Boxed, since few have one.
    pub protocol: Option<Box<HeaderValue>>,
    /// Its client, who is listened to further if the worker takes that protocol.
    pub client: Option<Box<dyn Incoming>>,
    /// Whether its answer may be asked for again, or continued.
    pub is_kept: bool,
    /// How the model is called in the answer, if the request gave it another name.
    pub renaming: Option<Arc<Renaming>>,
}

impl Call {
    /// Takes the request into the current trial; false while a reset holds new ones.
    pub(crate) fn enter(&mut self, reader: &Reader, shard: &Shard) -> bool {
        self.record.enter(reader, &shard.roll)
    }

    pub(crate) fn answered(
        mut self,
        answer: Result<Response<ResponseBody>, Failure>,
    ) -> Response<ResponseBody> {
        self.record.answered(answer)
    }

    /// The worker's answer, on its way to the client.
    pub(crate) fn relayed(
        self,
        forwarded: Forwarded,
        patience: Patience,
        (expose, stored): (bool, &Arc<Stored>),
    ) -> Response<ResponseBody> {
        if forwarded.answer.status == StatusCode::SWITCHING_PROTOCOLS {
            return self.tunnelled(forwarded, patience);
        }
        let Forwarded { mut answer, leg, chosen, correction, continuation } = forwarded;
        if let Some(chosen) = chosen.as_ref().filter(|_| expose) {
            headers::expose(&mut answer.headers, leg.worker().name(), &chosen.choice);
        }
        let has_prompt = matches!(self.route.class, Class::Routable(_)) && answer.status.is_success();
        let report = chosen.filter(|_| has_prompt).map(|Chosen { choice, policy, text_bytes }| {
            Report::new(Prediction { worker: Arc::clone(leg.worker()), policy, choice, text_bytes })
        });
        let mut record = self.record;
        let streamed = headers::is_event_stream(&answer.headers);
        record.status(answer.status, streamed);
        let renamed = self.renaming.filter(|_| !answer.headers.contains_key(header::CONTENT_ENCODING));
        let renamed = renamed.map(|renaming| Box::new(Renamed::new(renaming)));
        // To a body of known length nothing can be added, and what is edited has no known length.
        let is_edited = renamed.is_some() || correction.is_some() || continuation.is_some();
        let is_open = is_edited || answer.body.size_hint().exact().is_none();
        let records = streamed.then(|| Box::new(if is_open { Records::default() } else { Records::raw() }));
        let complete = Outcome::of_status(answer.status);
        let is_kept = self.is_kept && answer.status.is_success();
        let keeper = is_kept.then(|| Keeper::new(stored, leg.worker(), record.account.world.epoch()));
        let dialect = self.route.dialect;
        let manner = Manner {
            complete,
            records,
            dialect,
            patience,
            report,
            correction,
            continuation,
            keeper,
            renamed,
        };
        let relay = Relay::new(answer.body, leg, record, manner);
        let mut response = Response::new(ResponseBody::Relay(Box::new(relay)));
        *response.status_mut() = answer.status;
        *response.headers_mut() = answer.headers;
        response
    }

    /// The worker goes on with another protocol, and so does the client.
    fn tunnelled(self, forwarded: Forwarded, patience: Patience) -> Response<ResponseBody> {
        let Forwarded { answer, leg, .. } = forwarded;
        let mut record = self.record;
        record.status(answer.status, false);
        let Some(client) = self.client else {
            // Nobody is asked for another protocol without a client who wants it.
            return record.answered(Err(Failure::InvalidResponse("an upgrade nobody asked for".to_owned())));
        };
        let tunnel = Tunnel::new(answer.body, client, leg, record, patience);
        let mut response = Response::new(ResponseBody::Tunnel(Box::new(tunnel)));
        *response.status_mut() = answer.status;
        *response.headers_mut() = answer.headers;
        response
    }
}

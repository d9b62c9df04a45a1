//! A request whose route is known, and its two ends: the router's own answer, or a worker's on its way. It asks nobody.

use std::net::SocketAddr;
use std::sync::Arc;

use forebay_workers::Reader;
use http::request::Parts;
use http::{HeaderValue, Response};

use crate::failure::Failure;
use crate::forwarded::{Chosen, Forwarded};
use crate::headers;
use crate::outcome::Outcome;
use crate::patience::Patience;
use crate::record::Record;
use crate::records::Records;
use crate::relay::{Manner, Relay, ResponseBody};
use crate::report::{Prediction, Report};
use crate::route::{Class, Route};
use crate::shard::Shard;

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
        expose: bool,
    ) -> Response<ResponseBody> {
        let Forwarded { mut answer, leg, chosen, correction } = forwarded;
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
        // To a body of known length nothing can be added.
        let is_open = answer.body.size_hint().exact().is_none();
        let records = streamed.then(|| Box::new(if is_open { Records::default() } else { Records::raw() }));
        let complete = Outcome::of_status(answer.status);
        let manner = Manner { complete, records, dialect: self.route.dialect, patience, report, correction };
        let relay = Relay::new(answer.body, leg, record, manner);
        let mut response = Response::new(ResponseBody::Relay(Box::new(relay)));
        *response.status_mut() = answer.status;
        *response.headers_mut() = answer.headers;
        response
    }
}

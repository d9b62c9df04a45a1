//! A request's body read, as far as its route has to know it, and what it asks for. It chooses nobody.

use std::pin::pin;

use bytes::Bytes;
use forebay_workers::By;
use tokio::time::timeout;

use crate::call::Call;
use crate::classify::{self, Asked, Classifier, Incoming};
use crate::failure::Failure;
use crate::headers::Trust;
use crate::route::Class;
use crate::router::Router;

impl Router {
    /// Reads the body, and what it asks for.
    pub(crate) async fn classify(&self, call: &mut Call, body: impl Incoming) -> Result<Asked, Failure> {
        let body = self.read(body).await?;
        call.record.account.request_bytes = body.len() as u64;
        let classifier = Classifier {
            settings: &self.settings,
            metrics: self.metrics(),
            policies: call.record.account.world.policies(call.route.by()),
            all_keys: call.record.account.world.ledger().is_some(),
            peer: call.peer,
            parts: &call.parts,
        };
        let asked = match call.route.class {
            Class::Routable(shape) => {
                let rank = Trust::of(&self.settings).rank_of(&call.parts.headers);
                let rank = rank.filter(|_| call.route.by() == By::Rank);
                Ok(Asked { rank, ..classifier.prompt(shape, &body)? })
            }
            _ => {
                // What the table does not know may change something each time that it is sent.
                let once_only = call.route.is_unknown() && !call.parts.method.is_safe();
                classifier.opaque(&body).map(|asked| Asked { once_only, ..asked })
            }
        }?;
        call.record.account.stripped.extend_from_slice(&asked.stripped);
        Ok(asked)
    }

    /// Reads the body whole, within its limits.
    pub(crate) async fn read(&self, body: impl Incoming) -> Result<Bytes, Failure> {
        let mut reading = pin!(classify::read_body(body, self.settings.max_payload_bytes));
        match self.settings.times.client_body {
            Some(limit) => timeout(limit, reading.as_mut()).await.unwrap_or(Err(Failure::BodyTimeout)),
            None => reading.await,
        }
    }
}

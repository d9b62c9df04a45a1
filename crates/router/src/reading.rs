//! A request's body read, as far as its route has to know it, and what it asks for. It chooses nobody.

use std::borrow::Cow;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use forebay_openai::{FormReader, form};
use forebay_workers::By;
use http::Uri;
use http::header::CONTENT_TYPE;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use tokio::time::timeout;

use crate::aliases::Aliases;
use crate::call::Call;
use crate::classify::{self, Asked, Classifier};
use crate::failure::Failure;
use crate::headers::Trust;
use crate::incoming::Incoming;
use crate::route::Class;
use crate::router::Router;
use crate::upload::Upload;

/// How a query names a model.
const MODEL: &str = "model=";

impl Router {
    /// Reads the body, and what it asks for.
    pub(crate) async fn classify(&self, call: &mut Call, mut body: impl Incoming) -> Result<Asked, Failure> {
        if call.protocol.is_some() {
            call.client = Some(Box::new(body));
            return Ok(of_query(call, &self.settings.aliases));
        }
        if call.route.class == Class::Upload {
            let boundary =
                call.parts.headers.get(CONTENT_TYPE).and_then(|kind| form::boundary(kind.as_bytes()));
            if let Some(boundary) = boundary {
                // Boxed, since it is rare and would make every request's future larger.
                return Box::pin(self.classify_form(body, &boundary)).await;
            }
        }
        let body = self.read(&mut body).await?;
        call.record.account.request_bytes = body.len() as u64;
        self.classify_whole(call, &body)
    }

    fn classify_whole(&self, call: &mut Call, body: &Bytes) -> Result<Asked, Failure> {
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
                Ok(Asked { rank, ..classifier.prompt(shape, body)? })
            }
            _ => {
                // What the table does not know may change something each time that it is sent.
                let once_only = call.route.is_unknown() && !call.parts.method.is_safe();
                classifier.opaque(body).map(|asked| Asked { once_only, ..asked })
            }
        }?;
        call.record.account.stripped.extend_from_slice(&asked.stripped);
        Ok(asked)
    }

    /// A form that goes on while it comes: only its beginning is read here, for the model it names.
    async fn classify_form(&self, body: impl Incoming, boundary: &[u8]) -> Result<Asked, Failure> {
        let upload = Upload::new(body, self.settings.max_payload_bytes, self.settings.times.client_body)?;
        let mut form = FormReader::new(boundary);
        upload.read_form(&mut form).await?;
        let alias = form.model().and_then(|name| self.settings.aliases.find(name));
        if let (Some((model, _)), Some(place)) = (alias, form.model_place()) {
            upload.rewrite(place, model.as_bytes());
        }
        Ok(Asked {
            model: alias.map(|(model, _)| model).or(form.model()).map(str::to_owned),
            renaming: alias.map(|(_, renaming)| Arc::clone(renaming)),
            is_object: true,
            streamed: form.stream(),
            upload: Some(Box::new(upload)),
            ..Asked::default()
        })
    }

    /// Reads the body whole, within its limits.
    pub(crate) async fn read(&self, body: &mut impl Incoming) -> Result<Bytes, Failure> {
        let mut reading = pin!(classify::read_body(body, self.settings.max_payload_bytes));
        match self.settings.times.client_body {
            Some(limit) => timeout(limit, reading.as_mut()).await.unwrap_or(Err(Failure::BodyTimeout)),
            None => reading.await,
        }
    }
}

/// What a request asks for that has no body but a query. An alias is put right there.
fn of_query(call: &mut Call, aliases: &Aliases) -> Asked {
    let query = call.parts.uri.query().unwrap_or_default();
    let model = query.split('&').find_map(|pair| pair.strip_prefix(MODEL)).filter(|name| !name.is_empty());
    let mut model = model.map(|name| {
        let name = if name.contains('+') { Cow::Owned(name.replace('+', " ")) } else { Cow::Borrowed(name) };
        percent_decode_str(&name).decode_utf8_lossy().into_owned()
    });
    let alias = model.as_deref().and_then(|name| aliases.find(name));
    if let Some((named, uri)) =
        alias.and_then(|(named, _)| Some((named, asking_for(named, &call.parts.uri)?)))
    {
        (model, call.parts.uri) = (Some(named.to_owned()), uri);
    }
    Asked { is_object: model.is_some() || call.route.class == Class::Tunnel, model, ..Asked::default() }
}

/// The target with this model in the place of the first that its query names.
fn asking_for(model: &str, uri: &Uri) -> Option<Uri> {
    let mut is_first = true;
    let pairs = uri.query()?.split('&').map(|pair| {
        if pair.starts_with(MODEL) && std::mem::take(&mut is_first) {
            return Cow::Owned(format!("{MODEL}{}", utf8_percent_encode(model, NON_ALPHANUMERIC)));
        }
        Cow::Borrowed(pair)
    });
    let query = pairs.collect::<Vec<_>>().join("&");
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(format!("{}?{query}", uri.path()).parse().ok()?);
    Uri::from_parts(parts).ok()
}

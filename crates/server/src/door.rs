//! Where requests come in: decides between the admin API and the request path, for either listener.

use std::net::SocketAddr;
use std::sync::Arc;

use forebay_router::{ResponseBody, Router, Shard, Side};
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use tokio::time::timeout;
use tower::ServiceExt;

use crate::cors::Cors;
use crate::fleet::problem_of;
use crate::http1::body::RequestBody;
use crate::http1::connection::Patience;

/// Bytes of an order to the admin API at most.
const ORDER_LIMIT: usize = 2 << 20;

/// What a connection needs to have its requests answered.
pub(crate) struct Door {
    pub side: Side,
    pub router: Arc<Router>,
    pub shard: Arc<Shard>,
    pub admin: axum::Router,
    /// Which pages of other origins may read answers, if that is said at all.
    pub cors: Option<Arc<Cors>>,
    /// How long clients may take for their requests.
    pub patience: Patience,
}

impl Door {
    /// Answers one request. It is taken note of at once, not when the future is first polled. Nothing wraps the
    /// future: its size counts, since it is moved once for each request.
    pub(crate) fn enter(
        self: &Arc<Self>,
        peer: SocketAddr,
        head: Box<Parts>,
        body: RequestBody,
    ) -> impl Future<Output = Response<ResponseBody>> + Send + use<> {
        let begun = self.router.begin(self.side, peer, &head);
        let door = Arc::clone(self);
        let is_preflight = self.cors.is_some() && Cors::is_preflight(&head);
        let allowed = self.cors.as_ref().and_then(|cors| cors.allowed(&head)).map(Box::new);
        async move {
            let mut response = if is_preflight {
                begun.answered(Cors::preflight(&head))
            } else if begun.is_for_admin_api() {
                let response = door.admin(Request::from_parts(*head, body)).await;
                begun.answered(response)
            } else {
                door.router.serve(&door.shard, begun, head, body).await
            };
            if let Some(cors) = &door.cors {
                cors.mark(response.headers_mut(), allowed.map(|allowed| *allowed));
            }
            response
        }
    }

    /// Orders to the admin API and its pages are small, so they are taken whole.
    async fn admin(&self, request: Request<RequestBody>) -> Response<ResponseBody> {
        let (head, body) = request.into_parts();
        let answered = match self.order(body).await {
            Ok(order) => match self.admin.clone().oneshot(Request::from_parts(head, order)).await {
                Ok(response) => response,
                Err(never) => match never {},
            },
            Err((status, problem)) => problem_of(status, problem),
        };
        let (parts, body) = answered.into_parts();
        match body.collect().await {
            Ok(whole) => Response::from_parts(parts, ResponseBody::Whole(whole.to_bytes())),
            Err(_) => {
                let mut failed = Response::new(ResponseBody::Whole(bytes::Bytes::new()));
                *failed.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
                failed
            }
        }
    }

    async fn order(&self, body: RequestBody) -> Result<axum::body::Body, (StatusCode, &'static str)> {
        let read = axum::body::to_bytes(axum::body::Body::new(body), ORDER_LIMIT);
        let read = match self.patience.body {
            Some(limit) => timeout(limit, read).await,
            None => Ok(read.await),
        };
        match read {
            Ok(Ok(order)) => Ok(order.into()),
            Ok(Err(_)) => Err((StatusCode::PAYLOAD_TOO_LARGE, "the body is longer than 2 MiB, or broke off")),
            Err(_) => {
                Err((StatusCode::REQUEST_TIMEOUT, "the body has not come within --client-body-timeout-secs"))
            }
        }
    }
}

//! Where requests come in: decides between the admin API and the request path, for either listener.

use std::net::SocketAddr;
use std::sync::Arc;

use forebay_router::failure::Failure;
use forebay_router::{Class, ResponseBody, Router, Shard};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tower::ServiceExt;

/// Which listener a connection came in by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// Clients.
    Data,
    /// Operators: no request to a worker passes here.
    Admin,
}

/// What a connection needs to have its requests answered.
pub(crate) struct Door {
    pub side: Side,
    pub router: Arc<Router>,
    pub shard: Arc<Shard>,
    pub admin: axum::Router,
}

impl Door {
    /// Answers one request.
    pub(crate) async fn enter(&self, peer: SocketAddr, request: Request<Incoming>) -> Response<ResponseBody> {
        let mut route = self.router.route(&request);
        match (route.class, self.side) {
            (Class::Admin, _) => {
                let open = request.uri().path() == "/metrics";
                if open || self.router.is_admin(peer, &request) {
                    return self.admin(request).await;
                }
                Failure::Forbidden.response(route.dialect)
            }
            (Class::Routable(_) | Class::PickOne | Class::Control(_), Side::Admin) => {
                route.class = Class::Refused(forebay_router::route::Refusal::NotFound);
                self.router.serve(&self.shard, peer, route, request).await
            }
            _ => self.router.serve(&self.shard, peer, route, request).await,
        }
    }

    /// Pages of the admin API are small, so they are taken whole.
    async fn admin(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        let answered = match self.admin.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
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
}

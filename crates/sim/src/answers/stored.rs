//! Answers about stored responses: they exist only on the worker that made them.

use crate::answer::{Answer, quoted};
use crate::http::Method;
use crate::lock::Held;
use crate::request::Request;
use crate::routes::Route;
use crate::state::State;

pub(super) fn answer(state: &State, request: &Request<'_>, route: Route) -> Answer {
    let rest = request.path().strip_prefix("/v1/responses/").unwrap_or_default();
    let id = rest.strip_suffix("/cancel").unwrap_or(rest);
    let mut all = state.stored.held();
    let Some(at) = all.iter().position(|stored| stored.id == id) else {
        let message = format!("Response with id '{id}' not found.");
        return Answer::error(404, "NotFoundError", &message, Some("response_id"));
    };
    if route == Route::CancelStored {
        return Answer::bad_request("Cannot cancel a synchronous response.", Some("response_id"));
    }
    if request.method == Method::Delete {
        all.remove(at);
        return Answer::json(200, format!(r#"{{"id":{},"object":"response","deleted":true}}"#, quoted(id)));
    }
    Answer::json(200, all[at].json.clone())
}

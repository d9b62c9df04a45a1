//! Requests of browsers from pages of other origins: says which pages may read answers. Nothing is said unless origins are
//! named; then what workers say of it does not count.

use forebay_router::ResponseBody;
use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderValue, ORIGIN, VARY,
};
use http::request::Parts;
use http::{Method, Response, StatusCode};

/// Methods that workers and the router take.
const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");

/// What pages may read of an answer's head beside what they always may.
const EXPOSED: HeaderValue =
    HeaderValue::from_static("x-request-id, x-forebay-failure, x-forebay-worker, x-forebay-decision");

/// How long browsers may keep the answer to a preflight, in seconds.
const MAX_AGE: HeaderValue = HeaderValue::from_static("3600");

/// Origins whose pages may read answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cors {
    /// `None` is any.
    origins: Option<Vec<HeaderValue>>,
}

impl Cors {
    /// For these origins, each `SCHEME://HOST[:PORT]`, or `*` for any. `None` if there is none.
    pub(crate) fn of(origins: Vec<HeaderValue>) -> Option<Self> {
        let any = origins.iter().any(|origin| origin == "*");
        (!origins.is_empty()).then_some(Self { origins: (!any).then_some(origins) })
    }

    /// Whether a browser asks if it may send a request.
    pub(crate) fn is_preflight(head: &Parts) -> bool {
        head.method == Method::OPTIONS
            && head.headers.contains_key(ORIGIN)
            && head.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
    }

    /// What is answered then, whatever the path: the request itself is judged when it comes.
    pub(crate) fn preflight(head: &Parts) -> Response<ResponseBody> {
        let mut response = Response::new(ResponseBody::Whole(bytes::Bytes::new()));
        *response.status_mut() = StatusCode::NO_CONTENT;
        let headers = response.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
        headers.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
        if let Some(wanted) = head.headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
            headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
            headers.append(VARY, HeaderValue::from_static("access-control-request-headers"));
        }
        response
    }

    /// What is to be said of the origin of a request; `None` if it has none that may.
    pub(crate) fn allowed(&self, head: &Parts) -> Option<HeaderValue> {
        let origin = head.headers.get(ORIGIN)?;
        match &self.origins {
            None => Some(HeaderValue::from_static("*")),
            Some(origins) => origins.iter().find(|known| *known == origin).cloned(),
        }
    }

    /// Says so in an answer, and takes out what a worker said.
    pub(crate) fn mark(&self, headers: &mut HeaderMap, allowed: Option<HeaderValue>) {
        headers.remove(ACCESS_CONTROL_ALLOW_CREDENTIALS);
        headers.remove(ACCESS_CONTROL_ALLOW_ORIGIN);
        headers.remove(ACCESS_CONTROL_EXPOSE_HEADERS);
        if self.origins.is_some() {
            headers.append(VARY, HeaderValue::from_static("origin"));
        }
        if let Some(allowed) = allowed {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        }
    }
}

/// An origin as browsers send it, in lower case, or `*`.
pub(crate) fn origin(text: &str) -> Option<HeaderValue> {
    let rest = |text: &str| text.split_once("://").map(|(scheme, rest)| (scheme.to_owned(), rest.to_owned()));
    let fits = match rest(text) {
        None => text == "*" || text == "null",
        Some((scheme, host)) => {
            let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
            !scheme.is_empty()
                && scheme.bytes().all(|byte| is_word(byte) || b"+-.".contains(&byte))
                && !host.is_empty()
                && host.bytes().all(|byte| is_word(byte) || b"-._:[]".contains(&byte))
        }
    };
    fits.then(|| HeaderValue::from_str(text).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_written_as_browsers_send_them() {
        for good in
            ["*", "null", "https://app.example", "http://localhost:5173", "http://[::1]:80", "app-x://a"]
        {
            assert!(origin(good).is_some(), "{good}");
        }
        for bad in ["", "app.example", "https://", "https://app.example/", "https://A.example", "://a", "a b"]
        {
            assert!(origin(bad).is_none(), "{bad}");
        }
    }
}

//! Who may do what changes a worker or the router: the admin right, decided from the peer and the headers alone.

use std::net::SocketAddr;

use http::{HeaderMap, HeaderName, Uri, header};
use subtle::ConstantTimeEq;

use crate::settings::Secret;

/// Whether a request has the admin right: it shows the key, or it comes from this machine by itself.
///
/// "By itself" keeps out what a browser on this machine was talked into (`Origin`), what a proxy on this machine
/// passes on for somebody else (`Forwarded`, `X-Forwarded-…` and their like), and names that were made to point here
/// (`Host`).
pub fn is_admin(key: Option<&Secret>, peer: SocketAddr, uri: &Uri, headers: &HeaderMap) -> bool {
    shows_key(key, headers)
        || (peer.ip().to_canonical().is_loopback() && is_direct(headers) && names_loopback(uri, headers))
}

/// Whether `Authorization` is the admin key.
pub fn shows_key(key: Option<&Secret>, headers: &HeaderMap) -> bool {
    let Some(key) = key else { return false };
    headers
        .get(header::AUTHORIZATION)
        .and_then(bearer)
        .is_some_and(|shown| shown.ct_eq(key.expose().as_bytes()).into())
}

fn bearer(value: &http::HeaderValue) -> Option<&[u8]> {
    let (scheme, token) = value.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

fn is_direct(headers: &HeaderMap) -> bool {
    !headers.contains_key(header::ORIGIN) && !headers.keys().any(is_of_a_proxy)
}

/// Whether a proxy adds such a header to what it passes on.
fn is_of_a_proxy(name: &HeaderName) -> bool {
    *name == header::FORWARDED
        || *name == header::VIA
        || name.as_str().starts_with("x-forwarded-")
        || name.as_str() == "x-real-ip"
}

fn names_loopback(uri: &Uri, headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next().and_then(|host| host.to_str().ok());
    // A target in absolute form overrides the header, so both have to agree.
    host.is_some_and(is_loopback_name)
        && hosts.next().is_none()
        && uri.authority().is_none_or(|authority| is_loopback_name(authority.as_str()))
}

fn is_loopback_name(authority: &str) -> bool {
    let host = match authority.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admin(key: Option<&str>, peer: &str, headers: &[(&'static str, &str)]) -> bool {
        let key = key.map(|k| Secret::new(k.to_owned()));
        let headers = headers.iter().map(|(n, v)| (n.parse().unwrap(), v.parse().unwrap())).collect();
        is_admin(key.as_ref(), peer.parse().unwrap(), &Uri::from_static("/admin/reset"), &headers)
    }

    #[test]
    fn loopback_by_itself_may() {
        for host in ["localhost:30000", "127.0.0.1", "[::1]:9", "127.9.9.9:1"] {
            assert!(admin(None, "127.0.0.1:5", &[("host", host)]), "{host}");
        }
        assert!(admin(None, "[::ffff:127.0.0.1]:5", &[("host", "localhost")]));
    }

    #[test]
    fn loopback_on_behalf_of_somebody_else_may_not() {
        for header in ["origin", "forwarded", "x-forwarded-for", "x-forwarded-proto", "x-real-ip", "via"] {
            assert!(!admin(None, "127.0.0.1:5", &[("host", "localhost"), (header, "x")]), "{header}");
        }
        assert!(!admin(None, "127.0.0.1:5", &[("host", "evil.example:30000")]));
        assert!(!admin(None, "127.0.0.1:5", &[]));
        assert!(!admin(None, "127.0.0.1:5", &[("host", "localhost"), ("host", "evil")]));
    }

    #[test]
    fn others_need_the_key() {
        let far = "10.0.0.9:5";
        assert!(!admin(None, far, &[("host", "localhost"), ("authorization", "Bearer ")]));
        assert!(!admin(Some("k"), far, &[("host", "h")]));
        assert!(!admin(Some("k"), far, &[("host", "h"), ("authorization", "Bearer kk")]));
        assert!(admin(Some("k"), far, &[("host", "h"), ("authorization", "bearer k")]));
        assert!(admin(Some("k"), "127.0.0.1:5", &[("origin", "x"), ("authorization", "Bearer k")]));
    }
}

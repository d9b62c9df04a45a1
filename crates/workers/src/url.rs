//! How a worker is addressed: a base URL, taken apart once.

use std::fmt;
use std::str::FromStr;

/// Base URL of a worker: `http://host:port[/prefix]`, the same with `https`, or `unix:/path/of/a/socket`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct WorkerUrl {
    text: Box<str>,
    host: Box<str>,
    port: u16,
    authority: Box<str>,
    prefix: Box<str>,
    way: Way,
}

/// How it is reached.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Way {
    Tcp,
    Tls,
    Socket,
}

/// Why a text is not the URL of a worker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// The scheme is missing or not one that workers are reached by.
    #[error("'{0}' is not a worker URL: it must start with http://, https:// or unix:/")]
    Scheme(String),
    /// There is no host, or it holds characters that no host has.
    #[error("'{0}' is not a worker URL: no valid host in it")]
    Host(String),
    /// The port is not a number from 1 to 65535.
    #[error("'{0}' is not a worker URL: the port must be a number from 1 to 65535")]
    Port(String),
    /// A user, a query or a fragment, which a base URL cannot have.
    #[error("'{0}' is not a worker URL: user info, query and fragment have no place in it")]
    Extra(String),
}

impl WorkerUrl {
    /// The URL as text, without a trailing slash.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Host name or address, IPv6 without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// TCP port; 0 for a unix socket.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Path of the unix socket, if it is one.
    pub fn socket(&self) -> Option<&str> {
        (self.way == Way::Socket).then(|| &self.text["unix:".len()..])
    }

    /// Whether it is reached by TLS.
    pub fn is_tls(&self) -> bool {
        self.way == Way::Tls
    }

    /// What goes into the `Host` header.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Path in front of every request path: empty, or `/prefix`.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}

impl FromStr for WorkerUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let behind = |scheme: &str| {
            let (start, rest) = text.split_at_checked(scheme.len())?;
            start.eq_ignore_ascii_case(scheme).then_some(rest)
        };
        let (way, scheme, default_port, rest) = if let Some(path) = behind("unix:") {
            return Self::of_socket(text, path);
        } else if let Some(rest) = behind("http://") {
            (Way::Tcp, "http", 80, rest)
        } else if let Some(rest) = behind("https://") {
            (Way::Tls, "https", 443, rest)
        } else {
            return Err(UrlError::Scheme(text.to_owned()));
        };
        if rest.contains(['?', '#', '@']) {
            return Err(UrlError::Extra(text.to_owned()));
        }
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let (host, port) =
            split_port(authority, default_port).ok_or_else(|| UrlError::Port(text.to_owned()))?;
        let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        let bracketed = authority.starts_with('[');
        if host.is_empty()
            || !(bracketed && host.parse::<std::net::Ipv6Addr>().is_ok() || host.chars().all(named))
        {
            return Err(UrlError::Host(text.to_owned()));
        }
        let prefix = path.trim_end_matches('/');
        if !prefix.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(UrlError::Host(text.to_owned()));
        }
        Ok(Self {
            text: format!("{scheme}://{authority}{prefix}").into(),
            host: host.into(),
            port,
            authority: authority.into(),
            prefix: prefix.into(),
            way,
        })
    }
}

impl WorkerUrl {
    /// Of a unix socket: `unix:/path` or `unix:///path`. Requests to it have `localhost` for their host.
    fn of_socket(text: &str, path: &str) -> Result<Self, UrlError> {
        let path = path.strip_prefix("//").unwrap_or(path);
        let fits = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'?' | b'#');
        if !path.starts_with('/') || path.ends_with('/') || !path.bytes().all(fits) {
            return Err(UrlError::Host(text.to_owned()));
        }
        Ok(Self {
            text: format!("unix:{path}").into(),
            host: "localhost".into(),
            port: 0,
            authority: "localhost".into(),
            prefix: "".into(),
            way: Way::Socket,
        })
    }
}

/// Host and port of `host`, `host:port`, `[v6]` or `[v6]:port`; `None` if the port is not one.
fn split_port(authority: &str, default: u16) -> Option<(&str, u16)> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(v6) => {
            let (host, rest) = v6.split_once(']')?;
            (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    match port {
        None => Some((host, default)),
        Some(digits) => digits.parse().ok().filter(|&p: &u16| p > 0).map(|p| (host, p)),
    }
}

impl fmt::Display for WorkerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for WorkerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> WorkerUrl {
        text.parse().unwrap()
    }

    #[test]
    fn takes_hosts_ports_and_prefixes_apart() {
        let plain = url("http://gpu-1:8000/");
        assert_eq!((plain.as_str(), plain.host(), plain.port()), ("http://gpu-1:8000", "gpu-1", 8000));
        assert_eq!((plain.authority(), plain.prefix()), ("gpu-1:8000", ""));
        let v6 = url("http://[::1]:9/a/b/");
        assert_eq!((v6.host(), v6.port(), v6.authority(), v6.prefix()), ("::1", 9, "[::1]:9", "/a/b"));
        assert_eq!(url("HTTP://h").port(), 80);
        assert!(!plain.is_tls() && plain.socket().is_none());
    }

    #[test]
    fn tells_tls_and_sockets_apart() {
        let tls = url("HTTPS://gpu-1/p/");
        assert_eq!((tls.as_str(), tls.port(), tls.is_tls()), ("https://gpu-1/p", 443, true));
        for text in ["unix:/run/a.sock", "unix:///run/a.sock"] {
            let socket = url(text);
            assert_eq!((socket.as_str(), socket.socket()), ("unix:/run/a.sock", Some("/run/a.sock")));
            assert_eq!((socket.authority(), socket.prefix()), ("localhost", ""));
        }
        for bad in ["unix:", "unix:a.sock", "unix://host/a", "unix:/", "unix:/a b", "https://", "https://h:0"]
        {
            assert!(bad.parse::<WorkerUrl>().is_err(), "{bad}");
        }
    }

    #[test]
    fn refuses_what_is_not_a_base_url() {
        for bad in
            ["", "h:1", "ftp://h:1", "http://", "http://:80", "http://h:", "http://h:0", "http://h:99999"]
        {
            assert!(bad.parse::<WorkerUrl>().is_err(), "{bad}");
        }
        for bad in
            ["http://u@h:1", "http://h:1?x", "http://h:1#x", "http://h b:1", "http://[::1", "http://[::1]x"]
        {
            assert!(bad.parse::<WorkerUrl>().is_err(), "{bad}");
        }
    }
}

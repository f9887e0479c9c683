//! Where a hub is: `https://host[:port]`, or `http://` on loopback.
//!
//! A request's permission names the hub by this text when its key is not known, so there is one
//! canonical form: lower case, the port always written, no path.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::limits;

/// The URL of a hub, in canonical form.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HubUrl {
    encrypted: bool,
    host: String,
    port: u16,
}

impl HubUrl {
    /// Whether it is `https`. Plain `http` is to be had on loopback only.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.encrypted
    }

    /// Host name or IP address, an IPv6 one without its brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// TCP port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `host:port` as in a `host` field, an IPv6 address in brackets.
    #[must_use]
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for HubUrl {
    type Err = HubUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() > limits::MAX_URL {
            return Err(HubUrlError::Malformed);
        }
        let text = text.to_ascii_lowercase();
        let (encrypted, rest) = if let Some(rest) = text.strip_prefix("https://") {
            (true, rest)
        } else if let Some(rest) = text.strip_prefix("http://") {
            (false, rest)
        } else {
            return Err(HubUrlError::Malformed);
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let default_port = if encrypted { 443 } else { 80 };
        let (host, port) = split_port(rest, default_port).ok_or(HubUrlError::Malformed)?;
        if !encrypted && !is_loopback(&host) {
            return Err(HubUrlError::PlainElsewhere);
        }
        Ok(Self {
            encrypted,
            host,
            port,
        })
    }
}

fn split_port(rest: &str, default_port: u16) -> Option<(String, u16)> {
    if let Some(rest) = rest.strip_prefix('[') {
        let (host, port) = rest.split_once(']')?;
        let host = host.parse::<Ipv6Addr>().ok()?.to_string();
        return match port.strip_prefix(':') {
            Some(port) => Some((host, parse_port(port)?)),
            None if port.is_empty() => Some((host, default_port)),
            None => None,
        };
    }
    let (host, port) = match rest.split_once(':') {
        Some((host, port)) => (host, parse_port(port)?),
        None => (rest, default_port),
    };
    let label = |l: &str| {
        !l.is_empty()
            && l.bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    };
    host.split('.').all(label).then(|| (host.to_owned(), port))
}

fn parse_port(text: &str) -> Option<u16> {
    // `u16::from_str` takes a leading plus sign.
    let port = text
        .bytes()
        .all(|b| b.is_ascii_digit())
        .then(|| text.parse().ok())??;
    (port != 0).then_some(port)
}

fn is_loopback(host: &str) -> bool {
    if host == "localhost" {
        return true;
    }
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => address.is_loopback(),
        Ok(IpAddr::V6(address)) => {
            address.is_loopback()
                || address
                    .to_ipv4_mapped()
                    .is_some_and(|a: Ipv4Addr| a.is_loopback())
        }
        Err(_) => false,
    }
}

impl fmt::Display for HubUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.encrypted { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority())
    }
}

impl TryFrom<String> for HubUrl {
    type Error = HubUrlError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<HubUrl> for String {
    fn from(url: HubUrl) -> Self {
        url.to_string()
    }
}

/// Why a text is not the URL of a hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HubUrlError {
    /// Not `https://host[:port]`.
    #[error("a hub's URL is expected: https://host[:port]")]
    Malformed,
    /// Plain HTTP off the machine.
    #[error("plain http is for loopback only: a hub elsewhere is reached by https")]
    PlainElsewhere,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_one_canonical_form() {
        for (text, canonical) in [
            ("https://Hub.Example", "https://hub.example:443"),
            ("https://hub.example:7443/", "https://hub.example:7443"),
            ("http://127.0.0.1:80", "http://127.0.0.1:80"),
            ("http://localhost", "http://localhost:80"),
            ("https://[2001:DB8:0::1]:7443", "https://[2001:db8::1]:7443"),
            ("http://[::1]", "http://[::1]:80"),
        ] {
            let url: HubUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), canonical);
            assert_eq!(canonical.parse::<HubUrl>().unwrap(), url);
        }
    }

    #[test]
    fn what_is_no_hub_url_is_refused() {
        for text in [
            "",
            "hub.example",
            "ftp://hub.example",
            "https://",
            "https://a/b",
            "https://a?b",
            "https://user@a",
            "https://a:b",
            "https://a:+1",
            "https://a:0",
            "https://a:65536",
            "https://a..b",
            "https://[::1",
            "https://[::1]x",
            "https://[x]",
            "https://a b",
        ] {
            assert_eq!(
                text.parse::<HubUrl>(),
                Err(HubUrlError::Malformed),
                "{text}"
            );
        }
    }

    #[test]
    fn plain_http_is_for_loopback_only() {
        for text in [
            "http://hub.example",
            "http://192.0.2.1",
            "http://[2001:db8::1]:80",
        ] {
            assert_eq!(
                text.parse::<HubUrl>(),
                Err(HubUrlError::PlainElsewhere),
                "{text}"
            );
        }
    }
}

//! Addresses to listen at.

use std::{fmt, net::SocketAddr, path::PathBuf, str::FromStr};

/// A socket that is listened on: an IP address with a port, or `unix:` and a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ListenAddress {
    /// `127.0.0.1:9000`.
    Tcp(SocketAddr),
    /// `unix:/run/hail/front.sock`: 1 to 100 bytes, absolute.
    Unix(PathBuf),
}

impl FromStr for ListenAddress {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix("unix:") {
            // A socket's address has room for 107 bytes, and while it is made it has a longer name.
            Some(path) if path.starts_with('/') && path.len() <= 100 => Ok(Self::Unix(path.into())),
            Some(_) => Err("invalid address; `unix:` takes an absolute path of at most 100 bytes"),
            None => text
                .parse()
                .map(Self::Tcp)
                .map_err(|_| "invalid address; use IP:PORT or unix:PATH"),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

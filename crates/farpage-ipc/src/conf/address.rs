//! Where a server is: `HOST[:PORT]`, an IPv6 address in brackets, or the path of a Unix socket.
//!
//! A name is looked up before the engine starts ([`ServerAddress::resolve`], by the launcher or the thread that makes a
//! pager), never by the engine: looking up goes by libc, which wants its heap and its threads' storage. The engine is
//! given numbers ([`ServerAddress::endpoint`]).
//!
//! Callers: `conf`, the command, `region`. No locks.

use super::server_error::ServerSpecError;
use std::fmt;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

/// A server, as the user wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerAddress {
    /// By TCP.
    Tcp {
        /// A name or a number, without brackets.
        host: String,
        /// Port.
        port: u16,
    },
    /// A Unix socket.
    Unix {
        /// Its path.
        path: PathBuf,
    },
}

/// A server that can be connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// By TCP.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// For how long reads wait for a server that is out of reach, where nothing else is asked for.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// How long one of a name's addresses may take to answer.
const CONNECT: Duration = Duration::from_secs(2);
/// Longest path of a Unix socket, bytes.
const UNIX_MAX: usize = 107;

impl ServerAddress {
    /// Reads `HOST[:PORT]`, `ADDRESS[:PORT]` or `[IPV6][:PORT]`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str, default_port: u16) -> Result<ServerAddress, ServerSpecError> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, after) = rest.split_once(']').ok_or(ServerSpecError::OpenBracket)?;
                if !host.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6()) {
                    return Err(ServerSpecError::NoIpv6(host.into()));
                }
                let port = match after {
                    "" => None,
                    _ => Some(after.strip_prefix(':').ok_or_else(|| ServerSpecError::BehindBracket(after.into()))?),
                };
                (host, port)
            }
            None if text.matches(':').count() > 1 => {
                return Err(ServerSpecError::NoBrackets(text.into()));
            }
            None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-._:%".contains(c);
        if host.is_empty() || !host.chars().all(is_name) {
            return Err(ServerSpecError::Host(host.into()));
        }
        let port = match port {
            None => default_port,
            Some(text) => match text.parse() {
                Ok(port) if port != 0 => port,
                _ => return Err(ServerSpecError::Port(text.into())),
            },
        };
        Ok(ServerAddress::Tcp { host: host.into(), port })
    }

    /// A Unix socket.
    ///
    /// # Errors
    /// The path is not absolute, or too long.
    pub fn unix(path: &str) -> Result<ServerAddress, ServerSpecError> {
        if !path.starts_with('/') || path.len() < 2 {
            return Err(ServerSpecError::RelativePath(path.into()));
        }
        if path.len() > UNIX_MAX {
            return Err(ServerSpecError::LongPath(UNIX_MAX));
        }
        Ok(ServerAddress::Unix { path: path.into() })
    }

    /// Without looking a name up; `None`: it is a name.
    pub fn endpoint(&self) -> Option<Endpoint> {
        Some(match self {
            ServerAddress::Tcp { host, port } => Endpoint::Tcp(SocketAddr::new(host.parse().ok()?, *port)),
            ServerAddress::Unix { path } => Endpoint::Unix(path.clone()),
        })
    }

    /// Everything that the name stands for, each as numbers. Looks it up by libc: not for the engine's threads.
    ///
    /// # Errors
    /// The name is not known.
    pub fn resolve(&self) -> Result<Vec<ServerAddress>, ServerSpecError> {
        let ServerAddress::Tcp { host, port } = self else { return Ok(vec![self.clone()]) };
        if self.endpoint().is_some() {
            return Ok(vec![self.clone()]);
        }
        let found =
            (host.as_str(), *port).to_socket_addrs().map_err(|error| ServerSpecError::LookUp(error.to_string()))?;
        // The zone of a link-local address would be lost.
        let usable = found.filter(|at| !matches!(at, SocketAddr::V6(v6) if v6.scope_id() != 0));
        let all: Vec<ServerAddress> =
            usable.map(|at| ServerAddress::Tcp { host: at.ip().to_string(), port: *port }).collect();
        if all.is_empty() { Err(ServerSpecError::NoAddress(host.clone())) } else { Ok(all) }
    }
}

impl ServerAddress {
    /// The address by which the server can be connected to, as numbers. Not for the engine's threads.
    ///
    /// # Errors
    /// The name is not known, or none of its addresses answers.
    pub fn by_number(&self) -> Result<ServerAddress, ServerSpecError> {
        let all = self.resolve()?;
        if all.len() == 1 {
            return Ok(all[0].clone());
        }
        let mut why = ServerSpecError::NoAddress(self.to_string());
        for address in all {
            let Some(Endpoint::Tcp(at)) = address.endpoint() else { continue };
            match TcpStream::connect_timeout(&at, CONNECT) {
                Ok(_) => return Ok(address),
                Err(error) => why = ServerSpecError::NoAnswer(at, error.to_string()),
            }
        }
        Err(why)
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerAddress::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            ServerAddress::Tcp { host, port } => write!(f, "{host}:{port}"),
            ServerAddress::Unix { path } => write!(f, "{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Result<ServerAddress, ServerSpecError> {
        Ok(ServerAddress::Tcp { host: host.into(), port })
    }

    #[test]
    fn addresses_are_read_and_written() {
        for (text, host, port) in [
            ("box", "box", 10809),
            ("box.lan:7", "box.lan", 7),
            ("10.0.0.1", "10.0.0.1", 10809),
            ("10.0.0.1:65535", "10.0.0.1", 65535),
            ("[::1]", "::1", 10809),
            ("[fd00::2]:9", "fd00::2", 9),
        ] {
            let address = ServerAddress::parse(text, 10809);
            assert_eq!(address, tcp(host, port), "{text}");
            let again = address.clone().and_then(|address| ServerAddress::parse(&address.to_string(), 1));
            assert_eq!(again, address);
        }
    }

    #[test]
    fn bad_addresses_are_refused_by_what_is_wrong() {
        for (text, part) in [
            ("", "no name"),
            ("a b", "no name"),
            (":9", "no name"),
            ("box:", "port"),
            ("box:0", "port"),
            ("box:70000", "port"),
            ("::1", "brackets"),
            ("[::1", "not closed"),
            ("[box]:1", "no IPv6"),
            ("[::1]9", "follows"),
        ] {
            let error = ServerAddress::parse(text, 1).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(ServerAddress::unix("tmp/s").is_err() && ServerAddress::unix("/").is_err());
        assert!(ServerAddress::unix(&format!("/{}", "x".repeat(107))).is_err());
    }

    #[test]
    fn numbers_need_no_looking_up_and_names_do() {
        let number = ServerAddress::parse("[::1]:7", 1).unwrap();
        assert_eq!(number.endpoint(), Some(Endpoint::Tcp("[::1]:7".parse().unwrap())));
        assert_eq!(number.resolve(), Ok(vec![number]));
        let name = ServerAddress::parse("localhost:7", 1).unwrap();
        assert_eq!(name.endpoint(), None);
        assert!(name.resolve().unwrap().iter().all(|at| at.endpoint().is_some()));
        let socket = ServerAddress::unix("/run/s").unwrap();
        assert_eq!(socket.endpoint(), Some(Endpoint::Unix("/run/s".into())));
    }
}

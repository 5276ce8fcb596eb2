//! Why a server, or what is said of it, was refused.

use farpage_base::sys::raw::ErrnoText;
use std::net::SocketAddr;

/// `Display` is one line that names the part, and the remedy where it is not plain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServerSpecError {
    /// `[::1`.
    #[error("a bracket is not closed")]
    OpenBracket,
    /// `[box]`.
    #[error("{0:?} is no IPv6 address")]
    NoIpv6(String),
    /// `[::1]9`.
    #[error("{0:?} follows a bracket")]
    BehindBracket(String),
    /// `::1`.
    #[error("write an IPv6 address in brackets, as in [{0}]")]
    NoBrackets(String),
    /// A host's name with other characters.
    #[error("{0:?} is no name of a host")]
    Host(String),
    /// No port number.
    #[error("port {0:?} is no number from 1 to 65535")]
    Port(String),
    /// A Unix socket without an absolute path.
    #[error("{0:?} is no absolute path")]
    RelativePath(String),
    /// A Unix socket's path; the most bytes.
    #[error("the path of a Unix socket has {0} bytes at most")]
    LongPath(usize),
    /// The resolver's words.
    #[error("{0}")]
    LookUp(String),
    /// A name that stands for nothing.
    #[error("{0} has no address")]
    NoAddress(String),
    /// The last one of a name's addresses, and the kernel's words.
    #[error("{0}: {1}")]
    NoAnswer(SocketAddr, String),
    /// `nbds://`, `rediss://`.
    #[error("there is no TLS; put a tunnel in between (ssh -L, stunnel, WireGuard), and name its near end")]
    Tls,
    /// `nbd+unix:///a?b?c`.
    #[error("there is one question mark too many")]
    QuestionMark,
    /// An export of an NBD server.
    #[error("this is no name of an export")]
    Export,
    /// Of an export.
    #[error("{0:?} is no id")]
    Id(String),
    /// Behind the path of a Redis server's socket.
    #[error("{0:?} is unknown; write ?db=NUMBER")]
    BehindPath(String),
    /// Of a Redis server.
    #[error("database {0:?} is no number")]
    Database(String),
    /// Of a Redis server.
    #[error("this is no name of a user")]
    User,
    /// With the user's name; the variable for it.
    #[error("a password does not belong here; put it into {0}")]
    Password(&'static str),
    /// `tag=`.
    #[error("tag {0:?} is no number")]
    Tag(String),
    /// `password-fd=`.
    #[error("password-fd {0:?} is no number of a descriptor")]
    PasswordDescriptor(String),
    /// Where the password is: what, and why it cannot be read.
    #[error("cannot read {0}: {1}")]
    ReadPassword(String, ErrnoText),
    /// Nothing is there.
    #[error("the password is empty")]
    EmptyPassword,
    /// `mirror=`.
    #[error("mirror {0:?}: write a directory, as in mirror=file:/var/tmp")]
    Mirror(String),
    /// `timeout=`.
    #[error("timeout {0:?}: write 60s, 10m or inf")]
    Timeout(String),
}

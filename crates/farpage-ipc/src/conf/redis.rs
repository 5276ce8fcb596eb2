//! `redis://[USER@]HOST[:PORT][/DB]` and `redis+unix:///PATH`: a Redis or Valkey server as a swap device.
//!
//! The password is never part of it, because arguments and the environment's `FARPAGE_CONF` can be read by others: it
//! comes from the environment variable [`ENV_PASSWORD`], or from a file, or from a descriptor.
//!
//! Callers: `conf`, the command, `swap`. No locks.

use super::address::ServerAddress;
use super::server_error::ServerSpecError;
use super::server_options::ServerOptions;
use farpage_base::sys::raw::ErrnoText;
use rustix::fd::{BorrowedFd, RawFd};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use std::fmt;
use std::path::PathBuf;

/// The password, if nothing else is said.
pub const ENV_PASSWORD: &str = "FARPAGE_REDIS_PASSWORD";

const PORT: u16 = 6379;
/// Longest password.
const PASSWORD_MAX: usize = 4096;

/// Where the password is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PasswordFrom {
    /// The first line of this file.
    File(PathBuf),
    /// What can be read from this descriptor.
    Descriptor(RawFd),
}

/// A server and how it is to be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisSpec {
    /// Where it is.
    pub address: ServerAddress,
    /// The user's name there; `None`: the default user.
    pub user: Option<String>,
    /// Number of the database.
    pub database: u32,
    /// `None`: the environment, if it has one.
    pub password: Option<PasswordFrom>,
    /// How the server is to be used.
    pub served: ServerOptions,
    /// Believe that the server keeps what it is given.
    pub trust: bool,
    /// Names all processes of one run (`tag=`, undocumented).
    pub tag: Option<u64>,
}

impl RedisSpec {
    /// Reads what stands before the first comma. `None`: it is something else.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(head: &str) -> Option<Result<RedisSpec, ServerSpecError>> {
        if let Some(path) = head.strip_prefix("redis+unix://") {
            // The database as in the other form, behind a mark, because a path has slashes.
            let (path, database) = path.split_once('?').map_or((path, None), |(path, rest)| (path, Some(rest)));
            let database = database.map_or(Ok(0), |text| match text.strip_prefix("db=") {
                Some(number) => database_number(number),
                None => Err(ServerSpecError::BehindPath(text.into())),
            });
            return Some(ServerAddress::unix(path).and_then(|address| Ok(RedisSpec::at(address, None, database?))));
        }
        if head.starts_with("rediss://") {
            return Some(Err(ServerSpecError::Tls));
        }
        let rest = head.strip_prefix("redis://")?;
        Some((|| {
            let (user, rest) = rest.rsplit_once('@').map_or((None, rest), |(user, rest)| (Some(user), rest));
            if user.is_some_and(|user| user.contains(':')) {
                return Err(ServerSpecError::Password(ENV_PASSWORD));
            }
            if user.is_some_and(|user| user.is_empty() || user.contains(|c: char| c.is_control() || " ;".contains(c))) {
                return Err(ServerSpecError::User);
            }
            let (place, database) = rest.split_once('/').map_or((rest, ""), |pair| pair);
            let database = if database.is_empty() { 0 } else { database_number(database)? };
            Ok(RedisSpec::at(ServerAddress::parse(place, PORT)?, user.map(str::to_owned), database))
        })())
    }

    fn at(address: ServerAddress, user: Option<String>, database: u32) -> RedisSpec {
        RedisSpec { address, user, database, password: None, served: ServerOptions::default(), trust: false, tag: None }
    }

    /// Reads one of its options but `size` and `prio`. `None`: it is none.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn option(&mut self, name: &str, value: Option<&str>) -> Option<Result<(), ServerSpecError>> {
        match (name, value) {
            ("tag", Some(text)) => match u64::from_str_radix(text, 16) {
                Ok(tag) => self.tag = Some(tag),
                Err(_) => return Some(Err(ServerSpecError::Tag(text.into()))),
            },
            ("trust", None) => self.trust = true,
            ("password-file", Some(path)) if !path.is_empty() => self.password = Some(PasswordFrom::File(path.into())),
            ("password-fd", Some(text)) => match text.parse() {
                Ok(fd) if fd >= 0 => self.password = Some(PasswordFrom::Descriptor(fd)),
                _ => return Some(Err(ServerSpecError::PasswordDescriptor(text.into()))),
            },
            _ => return self.served.option(name, value),
        }
        Some(Ok(()))
    }

    /// The owner of this process's pages, as people read it on the server, and for [`RedisSpec::owns`].
    pub fn owner(&self) -> String {
        let (uname, pid) = (rustix::system::uname(), rustix::process::getpid().as_raw_nonzero());
        let tag = self.tag.map(|tag| format!(" {tag:x}")).unwrap_or_default();
        format!("{} {pid}{tag}", uname.nodename().to_string_lossy())
    }

    /// Whether this is an owner of the same run.
    pub fn owns(&self, owner: &str) -> bool {
        self.tag.is_some_and(|tag| owner.ends_with(&format!(" {tag:x}")))
    }

    /// What the device is called.
    pub fn name(&self) -> String {
        let user = self.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
        match (&self.address, self.database) {
            (ServerAddress::Unix { .. }, 0) => format!("redis+unix://{}", self.address),
            (ServerAddress::Unix { .. }, n) => format!("redis+unix://{}?db={n}", self.address),
            (ServerAddress::Tcp { .. }, 0) => format!("redis://{user}{}", self.address),
            (ServerAddress::Tcp { .. }, n) => format!("redis://{user}{}/{n}", self.address),
        }
    }

    /// The password, if it says where that is. Not for the engine's threads.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read_password(&self) -> Result<Option<Vec<u8>>, ServerSpecError> {
        let failed = |what: String, errno| ServerSpecError::ReadPassword(what, ErrnoText(errno));
        let bytes = match &self.password {
            None => return Ok(None),
            Some(PasswordFrom::File(path)) => {
                let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
                let file = rustix::fs::openat(CWD, path, flags, Mode::empty());
                file.and_then(read_all).map_err(|errno| failed(path.display().to_string(), errno))?
            }
            Some(PasswordFrom::Descriptor(fd)) => {
                // SAFETY: named by the user for this; only read from.
                let fd = unsafe { BorrowedFd::borrow_raw(*fd) };
                read_all(fd).map_err(|errno| failed("the descriptor of the password".into(), errno))?
            }
        };
        let line = bytes.split(|byte| matches!(byte, b'\n' | b'\r')).next().unwrap_or_default();
        if line.is_empty() { Err(ServerSpecError::EmptyPassword) } else { Ok(Some(line.to_vec())) }
    }
}

fn read_all(from: impl rustix::fd::AsFd) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; PASSWORD_MAX];
    let mut len = 0;
    while len < bytes.len() {
        match rustix::io::read(&from, &mut bytes[len..]) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    bytes.truncate(len);
    Ok(bytes)
}

fn database_number(text: &str) -> Result<u32, ServerSpecError> {
    text.parse().map_err(|_| ServerSpecError::Database(text.into()))
}

impl fmt::Display for RedisSpec {
    /// Without `size` and `prio`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())?;
        match &self.password {
            None => {}
            Some(PasswordFrom::File(path)) => write!(f, ",password-file={}", path.display())?,
            Some(PasswordFrom::Descriptor(fd)) => write!(f, ",password-fd={fd}")?,
        }
        self.served.write_timeout(f)?;
        f.write_str(if self.trust { ",trust" } else { "" })?;
        self.served.write_others(f)?;
        self.tag.map_or(Ok(()), |tag| write!(f, ",tag={tag:x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conf::SwapSpec;

    #[test]
    fn servers_are_read_and_written() {
        for text in [
            "redis://box:6379",
            "redis://me@10.0.0.1:7000/3,timeout=5s,trust,noencrypt,size=8192,prio=4",
            "redis://[fd00::2]:6379,password-file=/run/secret,timeout=inf,mirror=file:/var/tmp",
            "redis+unix:///run/redis.sock,password-fd=7",
            "redis+unix:///run/redis.sock?db=2",
            "redis://[::1]:1,tag=ab12",
        ] {
            assert_eq!(SwapSpec::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(SwapSpec::parse("redis://box,encrypt,timeout=1m").unwrap().to_string(), "redis://box:6379");
    }

    #[test]
    fn the_owners_of_a_run_are_known() {
        let mut spec = RedisSpec::parse("redis://box").unwrap().unwrap();
        assert!(!spec.owns(&spec.owner()));
        spec.tag = Some(0xab);
        let other = RedisSpec { tag: Some(0x1ab), ..spec.clone() };
        assert!(spec.owns(&spec.owner()) && !spec.owns(&other.owner()));
    }

    #[test]
    fn what_is_wrong_with_a_server_is_told() {
        for (text, part) in [
            ("redis://", "no name"),
            ("redis://box:x", "port"),
            ("redis://box/x", "database"),
            ("redis://me:secret@box", "FARPAGE_REDIS_PASSWORD"),
            ("redis://@box", "name of a user"),
            ("rediss://box", "tunnel"),
            ("redis+unix://tmp/x", "absolute"),
            ("redis+unix:///x?y=1", "?db="),
            ("redis://box,timeout=soon", "60s, 10m or inf"),
            ("redis://box,password-fd=-1", "descriptor"),
            ("redis://box,password=x", "password-file"),
            ("redis://box,free=1", "free=1"),
        ] {
            let error = SwapSpec::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let secret = SwapSpec::parse("redis://me:secret@box").unwrap_err().to_string();
        assert!(!secret.contains("secret"), "{secret}");
    }

    #[test]
    fn a_password_is_the_first_line_of_what_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        let read = |content: &str| {
            std::fs::write(&path, content).unwrap();
            let mut spec = RedisSpec::parse("redis://box").unwrap().unwrap();
            spec.option("password-file", path.to_str()).unwrap().unwrap();
            spec.read_password()
        };
        assert_eq!(read("s e:c,ret\nmore\n"), Ok(Some(b"s e:c,ret".to_vec())));
        assert!(read("").unwrap_err().to_string().contains("empty"));
        std::fs::remove_file(&path).unwrap();
        let mut spec = RedisSpec::parse("redis://box").unwrap().unwrap();
        spec.password = Some(PasswordFrom::File(path));
        assert!(spec.read_password().unwrap_err().to_string().contains("no such file"));
    }
}

//! One server: what it must be like, and what is asked of it besides pages.
//!
//! A server that may throw keys away throws pages away: it is refused unless its `maxmemory-policy` is `noeviction`,
//! and looked at again every few seconds. One without a `maxmemory` grows until its machine kills it: refused, too,
//! unless the user says `trust`.
//!
//! Callers: `pages`, `sweep`, `space`, the command. Locks: those of the link.

use super::greeting::{RedisGreeting, in_words};
use super::keys::{Hex, IDENTITY, SessionId};
use super::resp::{NONSENSE, REPLY_MAX, Reply, ServerRefusal, command, reply_of};
use crate::link::{AskedFor, Link, Patience, Unreachable};
use crate::wire::Broken;
use farpage_ipc::conf::redis::{ENV_PASSWORD, RedisSpec};
use farpage_ipc::conf::{DeviceError, variable};
use std::sync::Arc;

/// What is read from a connection at once, at least.
const PIECE: usize = 8 << 10;

/// A server.
pub struct Server {
    name: String,
    link: Arc<Link>,
    greeting: Arc<RedisGreeting>,
    trust: bool,
}

/// Why something was not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AskError {
    /// The server is out of reach.
    Unreachable(Unreachable),
    /// It refuses.
    Refused(ServerRefusal),
}

/// What a server says of its memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServerMemory {
    /// What it does when that is full; `None`: it does not say.
    pub policy: Option<String>,
    /// Bytes it may take; 0: all of the machine's.
    pub most: Option<u64>,
    /// Bytes it has taken.
    pub used: Option<u64>,
}

impl ServerMemory {
    /// From the text of INFO.
    fn parse(info: &[u8]) -> ServerMemory {
        let info = String::from_utf8_lossy(info);
        let field =
            |name: &str| info.lines().find_map(|line| line.trim().split_once(':').filter(|pair| pair.0 == name));
        let number = |name| field(name).and_then(|(_, value)| value.parse().ok());
        ServerMemory {
            policy: field("maxmemory_policy").map(|(_, value)| value.to_owned()),
            most: number("maxmemory"),
            used: number("used_memory"),
        }
    }

    /// Whether it keeps what it is given: why not, and what to do.
    fn unfit(&self, trust: bool) -> Option<(String, &'static str)> {
        match (&self.policy, self.most) {
            (Some(policy), _) if policy != "noeviction" => Some((
                format!("its maxmemory-policy is {policy}: it would throw pages away"),
                "say CONFIG SET maxmemory-policy noeviction there, or use a server for pages alone",
            )),
            (Some(_), Some(0)) if !trust => Some((
                String::from("its maxmemory is 0: it would grow until its machine has no memory left"),
                "say CONFIG SET maxmemory SIZE there, or trust here if something else limits it",
            )),
            (None, _) | (_, None) if !trust => Some((
                String::from("it does not say what it does when its memory is full"),
                "let this user ask INFO, or say trust here if its maxmemory-policy is noeviction",
            )),
            _ => None,
        }
    }
}

impl Server {
    /// The server of a device, which has not been asked anything yet. `password`: its password, unless the device says
    /// where that is. Not for the engine's threads.
    ///
    /// # Errors
    /// The password cannot be read; the server has a name that was not looked up.
    pub fn of(spec: &RedisSpec, password: Option<&[u8]>) -> Result<Server, DeviceError> {
        let error = |reason: String, remedy| DeviceError::new(spec.name(), reason, remedy);
        let named =
            spec.read_password().map_err(|why| error(why.to_string(), "name a file that this user may read"))?;
        let from_environment = || variable(ENV_PASSWORD).filter(|text| !text.is_empty()).map(String::into_bytes);
        let password = named.or_else(|| password.map(<[u8]>::to_vec)).or_else(from_environment);
        let no_number = || error("its name was not looked up".into(), "write its address as a number");
        let endpoint = spec.address.endpoint().ok_or_else(no_number)?;
        let greeting = Arc::new(RedisGreeting::new(spec.user.as_deref(), password.as_deref(), spec.database));
        let link = Link::new(spec.name(), endpoint, greeting.clone(), spec.served.timeout);
        Ok(Server { name: spec.name(), link: Arc::new(link), greeting, trust: spec.trust })
    }

    /// The connections.
    pub fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Connects, whatever the server is like.
    ///
    /// # Errors
    /// Why that is not possible, and what to do about it.
    pub fn connect(&self) -> Result<(), DeviceError> {
        self.link.open().map_err(|failed| {
            let reason = failed.to_string();
            let remedy = match reason.as_str() {
                why if why.contains("password") => {
                    "put the password into FARPAGE_REDIS_PASSWORD, or name a file with password-file="
                }
                why if why.contains("database") => "name another one, as in redis://HOST/0",
                _ => "look whether it runs and can be reached from here",
            };
            self.error(reason, remedy)
        })
    }

    /// Connects, and looks whether the server will do. It has an identity from now on.
    ///
    /// # Errors
    /// Why it will not do, and what to do about it.
    pub fn open(&self) -> Result<ServerMemory, DeviceError> {
        self.connect()?;
        let memory = self.memory().map_err(|error| self.asking_failed("INFO", error))?;
        if let Some((reason, remedy)) = memory.unfit(self.trust) {
            return Err(self.error(reason, remedy));
        }
        let failed = |error| self.asking_failed("SET", error);
        let id = SessionId::random().map_err(|_| self.error("the kernel gives no random bytes".into(), "try again"))?;
        match self.ask(&[b"SET", IDENTITY, &id.hex(), b"NX"]).map_err(failed)? {
            // The first one here, or not.
            Reply::Status(_) | Reply::Nothing => {}
            _ => return Err(self.nonsense()),
        }
        let identity = match self.ask(&[b"GET", IDENTITY]).map_err(failed)? {
            Reply::Bulk(bytes) => Hex::try_from(bytes).map_err(|_| self.nonsense())?,
            _ => return Err(self.nonsense()),
        };
        self.greeting.expect(identity);
        Ok(memory)
    }

    /// Why the server must not be used any longer, if it says so.
    pub fn unfit(&self) -> Option<&'static str> {
        // One that does not answer now is none.
        let memory = self.memory().ok()?;
        (memory.unfit(true).is_some())
            .then_some("its maxmemory-policy is not noeviction any more: it would throw pages away")
    }

    fn memory(&self) -> Result<ServerMemory, AskError> {
        match self.ask(&[b"INFO", b"memory"]) {
            Ok(Reply::Bulk(text)) => Ok(ServerMemory::parse(&text)),
            Ok(_) | Err(AskError::Refused(ServerRefusal::Permission | ServerRefusal::UnknownCommand)) => {
                Ok(ServerMemory::default())
            }
            Err(error) => Err(error),
        }
    }

    /// Asks one thing; does not wait for a server that is out of reach. Allocates.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn ask(&self, words: &[&[u8]]) -> Result<Reply, AskError> {
        let mut bytes = Vec::new();
        command(&mut bytes, words);
        self.ask_bytes(&bytes)
    }

    /// The same with a command as it is sent.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn ask_bytes(&self, command: &[u8]) -> Result<Reply, AskError> {
        let reply = self.link.talk(Patience::Now, AskedFor::Other, &mut |wire| {
            wire.send(&[command])?;
            let mut bytes = Vec::new();
            loop {
                match reply_of(&bytes)? {
                    // It is to be asked again, as one that does not answer.
                    Some((_, Reply::Refused(ServerRefusal::Later))) => return Err(Broken::Busy),
                    Some((used, reply)) if used == bytes.len() => return Ok(reply),
                    None if bytes.len() < REPLY_MAX => {}
                    _ => return Err(NONSENSE),
                }
                let len = bytes.len();
                bytes.resize(len + len.max(PIECE), 0);
                let n = wire.receive(&mut bytes[len..], true)?;
                bytes.truncate(len + n);
            }
        });
        match reply.map_err(AskError::Unreachable)? {
            Reply::Refused(refusal) => Err(AskError::Refused(refusal)),
            reply => Ok(reply),
        }
    }

    fn error(&self, reason: String, remedy: &str) -> DeviceError {
        DeviceError::new(self.name.clone(), reason, remedy)
    }

    fn nonsense(&self) -> DeviceError {
        self.error("it answers as no Redis server does".into(), "look what listens there")
    }

    /// What was asked, and came to nothing.
    pub fn asking_failed(&self, what: &str, error: AskError) -> DeviceError {
        match error {
            AskError::Unreachable(error) => self.error(error.to_string(), "look whether it runs"),
            AskError::Refused(ServerRefusal::Full) => {
                let remedy = "raise its maxmemory; farpage swapoff removes what programs that ended have left there";
                self.error(format!("{what}: {}", in_words(ServerRefusal::Full)), remedy)
            }
            AskError::Refused(refusal) => {
                let remedy = "its user needs GET, MGET, SET, UNLINK, EXISTS, HSET, HDEL, HGETALL and INFO";
                self.error(format!("{what}: {}", in_words(refusal)), remedy)
            }
        }
    }
}

/// The device by numbers, and its server: the first of those that its name stands for with which `begin` (as
/// [`Server::open`]) is content, and what that found. Looks the name up by libc: not for the engine's threads.
///
/// # Errors
/// None of them will do; the last one's reason.
pub fn resolve<R>(
    spec: &RedisSpec,
    password: Option<&[u8]>,
    begin: fn(&Server) -> Result<R, DeviceError>,
) -> Result<(RedisSpec, Server, R), DeviceError> {
    let error = |reason: String| DeviceError::new(spec.name(), reason, "look whether its name is right");
    let mut last = error(String::from("it has no address"));
    for address in spec.address.resolve().map_err(|why| error(why.to_string()))? {
        let tried = RedisSpec { address, ..spec.clone() };
        let server = Server::of(&tried, password)?;
        match begin(&server) {
            Ok(found) => return Ok((tried, server, found)),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_of_its_memory_decides() {
        let unfit = |info: &str, trust| ServerMemory::parse(info.as_bytes()).unfit(trust).map(|why| why.0);
        let good = "# Memory\r\nused_memory:1000\r\nmaxmemory:4096\r\nmaxmemory_policy:noeviction\r\n";
        assert_eq!(unfit(good, false), None);
        let evicts = good.replace("noeviction", "allkeys-lru");
        assert!([false, true].iter().all(|trust| unfit(&evicts, *trust).unwrap().contains("allkeys-lru")));
        let endless = good.replace(":4096", ":0");
        assert!(unfit(&endless, false).unwrap().contains("maxmemory is 0"));
        assert_eq!(unfit(&endless, true), None);
        for silent in ["", "# Memory\r\nmaxmemory:4096\r\n", "maxmemory_policy:noeviction\r\n"] {
            assert!(unfit(silent, false).unwrap().contains("does not say"));
            assert_eq!(unfit(silent, true), None);
        }
    }
}

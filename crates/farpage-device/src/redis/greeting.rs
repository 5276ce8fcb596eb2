//! How a connection to a server begins: password, database, and whether it is the server that has our pages.
//!
//! Callers: `server`, and the link, which sends it. No locks.

use super::keys::{Hex, IDENTITY};
use super::resp::{Commands, LINE_MAX, Reader, Replies, RespError, ServerRefusal};
use crate::remote::opening::{Answer, Greeting};
use crate::remote::wire::Broken;
use std::sync::OnceLock;

/// See the module header.
pub struct RedisGreeting {
    hello: Vec<u8>,
    has_password: bool,
    has_database: bool,
    /// What the server had under [`IDENTITY`] when the device was made.
    identity: OnceLock<Hex>,
}

impl RedisGreeting {
    /// For a user with a password (or the password of the server alone) and a database.
    pub fn new(user: Option<&str>, password: Option<&[u8]>, database: u32) -> RedisGreeting {
        let mut hello = Commands::default();
        match (user, password) {
            (Some(user), password) => hello.push(&[b"AUTH", user.as_bytes(), password.unwrap_or_default()]),
            (None, Some(password)) => hello.push(&[b"AUTH", password]),
            (None, None) => {}
        }
        if database != 0 {
            hello.push(&[b"SELECT", database.to_string().as_bytes()]);
        }
        hello.push(&[b"GET", IDENTITY]);
        RedisGreeting {
            hello: hello.into_memory(),
            has_password: user.is_some() || password.is_some(),
            has_database: database != 0,
            identity: OnceLock::new(),
        }
    }

    /// From now on only a server with this identity will do.
    pub fn expect(&self, identity: Hex) {
        let _ = self.identity.set(identity);
    }

    fn look(&self, got: &[u8]) -> Result<Answer, RespError> {
        let (mut buffer, mut slice) = ([0; LINE_MAX], Slice(got));
        let (reader, stream) = (&mut Reader::new(&mut buffer), &mut slice);
        let refused = |why| Ok(Answer::Refused(why));
        if self.has_password {
            match reader.done(stream) {
                Err(RespError::Refused(ServerRefusal::Later)) => return refused(LATER),
                Err(RespError::Refused(_)) => return refused("it does not take this user and password"),
                other => other?,
            }
        }
        if self.has_database {
            match reader.done(stream) {
                Err(RespError::Refused(
                    refusal @ (ServerRefusal::Password | ServerRefusal::Later | ServerRefusal::Permission),
                )) => {
                    return refused(in_words(refusal));
                }
                Err(RespError::Refused(_)) => return refused("it has no database of this number"),
                other => other?,
            }
        }
        let mut identity = [0; 32];
        let there = match reader.value(stream, &mut identity) {
            Err(RespError::Refused(refusal)) => return refused(in_words(refusal)),
            other => other?,
        };
        Ok(match self.identity.get() {
            None => Answer::Welcome,
            Some(known) if there == Some(known.len()) && identity == *known => Answer::Welcome,
            Some(_) if there.is_none() => Answer::Another("it is back without its data"),
            Some(_) => Answer::Another("it is another server, or has lost its data"),
        })
    }
}

const NO_PASSWORD: &str = "it wants a password";
const LATER: &str = "it is busy, loads its data, or has too many clients";

/// Why a server refuses, for people.
pub fn in_words(refusal: ServerRefusal) -> &'static str {
    match refusal {
        ServerRefusal::Full => "it has reached its maxmemory",
        ServerRefusal::Password => NO_PASSWORD,
        ServerRefusal::Permission => "this user may not do that",
        ServerRefusal::UnknownCommand => "it does not know a command that is needed",
        ServerRefusal::Cluster => "it is part of a cluster, which is not supported",
        ServerRefusal::Later => LATER,
        ServerRefusal::ReadOnly => "it takes no writes now (a replica, or its disk is full)",
        ServerRefusal::Other => "it refuses",
    }
}

impl Greeting for RedisGreeting {
    fn hello(&self) -> &[u8] {
        &self.hello
    }

    fn answer(&self, got: &[u8]) -> Answer {
        match self.look(got) {
            Ok(answer) => answer,
            // The end of the slice.
            Err(RespError::Broken(Broken::Silent)) => Answer::More,
            Err(RespError::Broken(_) | RespError::Refused(_)) => Answer::Refused("it is no Redis server"),
        }
    }
}

/// What has come in so far.
struct Slice<'a>(&'a [u8]);

impl Replies for Slice<'_> {
    fn receive(&mut self, into: &mut [u8]) -> Result<usize, Broken> {
        let n = into.len().min(self.0.len());
        into[..n].copy_from_slice(&self.0[..n]);
        self.0 = &self.0[n..];
        if n == 0 { Err(Broken::Silent) } else { Ok(n) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_begins_with_all_that_is_needed() {
        let hello = |user, password: Option<&str>, database| {
            let greeting = RedisGreeting::new(user, password.map(str::as_bytes), database);
            let words: Vec<String> =
                String::from_utf8_lossy(greeting.hello()).split("\r\n").map(String::from).collect();
            words
                .into_iter()
                .filter(|word| !word.starts_with(['*', '$']) && !word.is_empty())
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(hello(None, None, 0), "GET farpage:server");
        assert_eq!(hello(None, Some("x"), 3), "AUTH x SELECT 3 GET farpage:server");
        assert_eq!(hello(Some("me"), Some("x"), 0), "AUTH me x GET farpage:server");
    }

    #[test]
    fn what_the_server_answers_decides() {
        let greeting = RedisGreeting::new(Some("me"), Some(b"x"), 3);
        let identity = [b'7'; 32];
        let good = [&b"+OK\r\n+OK\r\n$32\r\n"[..], &identity, b"\r\n"].concat();
        for len in 0..good.len() {
            assert_eq!(greeting.answer(&good[..len]), Answer::More, "{len}");
        }
        assert_eq!(greeting.answer(&good), Answer::Welcome);
        assert_eq!(greeting.answer(b"+OK\r\n+OK\r\n$-1\r\n"), Answer::Welcome, "nobody has been here");
        greeting.expect(identity);
        assert_eq!(greeting.answer(&good), Answer::Welcome);
        let other = [&b"+OK\r\n+OK\r\n$32\r\n"[..], &[b'8'; 32], b"\r\n"].concat();
        let short = b"+OK\r\n+OK\r\n$3\r\n777\r\n";
        for lost in [&b"+OK\r\n+OK\r\n$-1\r\n"[..], &other, short] {
            assert!(matches!(greeting.answer(lost), Answer::Another(_)));
        }
        for (answer, part) in [
            ("-WRONGPASS invalid\r\n-NOAUTH x\r\n-NOAUTH x\r\n", "user and password"),
            ("-ERR max number of clients reached\r\n", "too many clients"),
            ("+OK\r\n-ERR DB index is out of range\r\n", "no database"),
            ("+OK\r\n+OK\r\n-NOPERM this user has no permissions\r\n", "may not"),
            ("+OK\r\n+OK\r\n-LOADING Redis is loading\r\n", "loads its data"),
            ("+OK\r\n+OK\r\n-MOVED 1 a:1\r\n", "cluster"),
            ("HTTP/1.1 400 Bad Request\r\n", "no Redis"),
            ("+OK\r\n+OK\r\n$33\r\n", "no Redis"),
        ] {
            let why = greeting.answer(answer.as_bytes());
            assert!(matches!(why, Answer::Refused(why) if why.contains(part)), "{answer}: {why:?}");
        }
        let open = RedisGreeting::new(None, None, 1);
        assert_eq!(open.answer(b"-NOAUTH Authentication required.\r\n"), Answer::Refused(NO_PASSWORD));
        assert_eq!(open.answer(b"-ERR max number of clients reached\r\n"), Answer::Refused(LATER));
    }

    /// Whatever a server says, nothing worse happens than that it is not believed.
    #[test]
    fn fuzz_greeting() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let greeting = RedisGreeting::new(None, Some(b"x"), 1);
            greeting.expect([b'1'; 32]);
            let _ = greeting.answer(bytes);
        });
    }
}

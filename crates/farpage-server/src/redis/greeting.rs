//! How a connection to a server begins: password, database, and whether it is the server that has our pages.
//!
//! Callers: `server`, and the link, which sends it. No locks.

use super::keys::{Hex, IDENTITY};
use super::resp::{ReplyPart, ServerRefusal, command, part_of};
use crate::opening::{Answer, Greeting};
use crate::wire::Broken;
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
        let mut hello = Vec::new();
        match (user, password) {
            (Some(user), password) => command(&mut hello, &[b"AUTH", user.as_bytes(), password.unwrap_or_default()]),
            (None, Some(password)) => command(&mut hello, &[b"AUTH", password]),
            (None, None) => {}
        }
        if database != 0 {
            command(&mut hello, &[b"SELECT", database.to_string().as_bytes()]);
        }
        command(&mut hello, &[b"GET", IDENTITY]);
        RedisGreeting {
            hello,
            has_password: user.is_some() || password.is_some(),
            has_database: database != 0,
            identity: OnceLock::new(),
        }
    }

    /// From now on only a server with this identity will do.
    pub fn expect(&self, identity: Hex) {
        let _ = self.identity.set(identity);
    }

    /// `None`: it is not complete.
    fn look(&self, got: &[u8]) -> Result<Option<Answer>, Broken> {
        let refused = |why| Ok(Some(Answer::Refused(why)));
        let (mut at, steps) = (0, [(self.has_password, NO_USER), (self.has_database, NO_DATABASE)]);
        for (_, otherwise) in steps.into_iter().filter(|(is_asked, _)| *is_asked) {
            let Some((used, part)) = part_of(&got[at..], 32)? else { return Ok(None) };
            match part {
                ReplyPart::Status(..) => at += used,
                ReplyPart::Refused(ServerRefusal::Later) => return refused(LATER),
                ReplyPart::Refused(refusal @ (ServerRefusal::Password | ServerRefusal::Permission))
                    if otherwise == NO_DATABASE =>
                {
                    return refused(in_words(refusal));
                }
                ReplyPart::Refused(_) => return refused(otherwise),
                _ => return refused(NO_REDIS),
            }
        }
        let Some((used, part)) = part_of(&got[at..], 32)? else { return Ok(None) };
        let identity = match part {
            ReplyPart::Refused(refusal) => return refused(in_words(refusal)),
            ReplyPart::NoValue => None,
            ReplyPart::Value(from, to) => Some(&got[at + from..at + to]),
            _ => return refused(NO_REDIS),
        };
        Ok(Some(match self.identity.get() {
            _ if got.len() > at + used => Answer::Refused(NO_REDIS),
            None => Answer::Welcome,
            Some(known) if identity == Some(known) => Answer::Welcome,
            Some(_) if identity.is_none() => Answer::Another("it is back without its data"),
            Some(_) => Answer::Another("it is another server, or has lost its data"),
        }))
    }
}

const NO_USER: &str = "it does not take this user and password";
const NO_DATABASE: &str = "it has no database of this number";
const NO_REDIS: &str = "it is no Redis server";
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
        self.look(got).map_or(Answer::Refused(NO_REDIS), |answer| answer.unwrap_or(Answer::More))
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

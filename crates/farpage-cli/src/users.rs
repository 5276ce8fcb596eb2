//! The user of a process, by name.
//!
//! The passwd database may be far away, so each user is looked up once. Callers: `farpage top`, and metrics. No locks.

use crate::process::Status;
use crate::stat_cmd::find::printable;
use nix::unistd::{Uid, User};
use std::collections::HashMap;

/// Names that were looked up.
#[derive(Debug, Default)]
pub struct Users(HashMap<u32, String>);

impl Users {
    /// The user whose rights a process has: the name, or the number of one without; `-` if it has ended.
    pub fn of(&mut self, pid: u32) -> String {
        let Ok(status) = Status::read(pid) else { return "-".into() };
        self.0.entry(status.uid()).or_insert_with_key(|uid| name(*uid)).clone()
    }
}

fn name(uid: u32) -> String {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    user.map_or_else(|| uid.to_string(), |user| printable(user.name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_have_names_or_numbers() {
        assert_eq!((name(0), name(3_999_999_999)), ("root".into(), "3999999999".into()));
        let mut users = Users::default();
        let own = std::process::id();
        assert_eq!(users.of(own), name(rustix::process::geteuid().as_raw()));
        // Not looked up again.
        users.0.values_mut().for_each(|name| *name = "known".into());
        assert_eq!((users.of(own), users.of(u32::MAX)), ("known".into(), "-".into()));
    }
}

//! Users: by name or number, and `--user`, which becomes another one for good.
//!
//! Callers: `farpage run`, and the rules of `farpage guard`. No locks.

use crate::failure::{Failure, Result, why};
use nix::unistd::{self, Gid, Group, Uid};
use std::ffi::CString;

/// The user to become.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Login name, for the groups; `None`: not in the passwd database.
    name: Option<CString>,
    /// Variables that name the user.
    pub env: Vec<(&'static str, String)>,
}

/// Reads `NAME|UID[:GROUP|GID]`.
///
/// # Errors
/// Not root, no such user or group, or a number that needs a group.
pub fn lookup(text: &str) -> Result<User> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new("--user: only root can run a program as another user"));
    }
    let (who, group) = match text.split_once(':') {
        Some((who, group)) => (who, Some(group)),
        None => (text, None),
    };
    let gid = group.map(|group| {
        let named = Group::from_name(group).ok().flatten();
        named
            .map(|group| group.gid.as_raw())
            .or_else(|| id(group))
            .ok_or_else(|| Failure::new(format!("--user {text}: no such group")).help("list them    getent group"))
    });
    let gid = gid.transpose()?;
    let uid = id(who);
    match (entry(who), uid, gid) {
        (Some(entry), _, gid) => {
            let home = entry.dir.to_string_lossy().into_owned();
            let env = vec![("HOME", home), ("USER", entry.name.clone()), ("LOGNAME", entry.name.clone())];
            let name = CString::new(entry.name).ok();
            Ok(User { uid: entry.uid.as_raw(), gid: gid.unwrap_or(entry.gid.as_raw()), name, env })
        }
        (None, Some(uid), Some(gid)) => Ok(User { uid, gid, name: None, env: Vec::new() }),
        (None, Some(uid), None) => Err(Failure::new(format!(
            "--user {text}: uid {uid} is not in the passwd database, so its group is unknown"
        ))
        .help(format!("name the group too    --user {uid}:GID"))),
        (None, None, _) => Err(Failure::new(format!("--user {text}: no such user")).help("list them    getent passwd")),
    }
}

/// An entry of the passwd database. A name wins over a number, as for chown. So it is with groups.
fn entry(who: &str) -> Option<unistd::User> {
    let named = unistd::User::from_name(who).ok().flatten();
    named.or_else(|| unistd::User::from_uid(Uid::from_raw(id(who)?)).ok().flatten())
}

/// The number of a user, by name or number.
pub fn uid(text: &str) -> Option<u32> {
    entry(text).map(|entry| entry.uid.as_raw()).or_else(|| id(text))
}

/// A numeric id; `-1` means "leave as it is" to the kernel and is none.
fn id(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|id| digits && *id != u32::MAX)
}

/// Gives up all privilege: groups, gid, uid, in this order, and checks that there is no way back.
///
/// # Errors
/// Any of them fails. The caller must not go on.
pub fn become_user(user: &User) -> Result<()> {
    let fail = |what: &str, error: nix::Error| {
        Failure::new(format!("--user: cannot {what} {}: {}", user.uid, why(&error.into())))
    };
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    let groups = match &user.name {
        Some(name) => unistd::initgroups(name, gid),
        None => unistd::setgroups(&[]),
    };
    groups.map_err(|error| fail("set the groups of", error))?;
    unistd::setresgid(gid, gid, gid).map_err(|error| fail("set the group of", error))?;
    unistd::setresuid(uid, uid, uid).map_err(|error| fail("become", error))?;
    if !uid.is_root() && unistd::setuid(Uid::from_raw(0)).is_ok() {
        return Err(Failure::new(format!("--user: uid {uid} could become root again; not going on")));
    }
    // Changing ids hides /proc/self from us; there is nothing of root's in this process but the device descriptor,
    // which the program is meant to have.
    // SAFETY: PR_SET_DUMPABLE takes one number.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids() {
        assert_eq!(id("1000"), Some(1000));
        for text in ["", "-1", "+1", "4294967295", "x", "99999999999"] {
            assert_eq!(id(text), None, "{text}");
        }
    }

    #[test]
    fn lookups() {
        if !rustix::process::geteuid().is_root() {
            assert!(lookup("root").unwrap_err().sentence.contains("only root"));
            println!("skipped the rest: not root");
            return;
        }
        assert_eq!(lookup("root").unwrap().uid, 0);
        assert_eq!(lookup("0").unwrap().env[1], ("USER", "root".to_owned()));
        assert_eq!(lookup("nobody:7").unwrap().gid, 7);
        assert_eq!((lookup("nobody:root").unwrap().gid, lookup("3999999999:root").unwrap().gid), (0, 0));
        for group in ["", "no-such-group", "-1", "4294967295"] {
            let failure = lookup(&format!("nobody:{group}")).unwrap_err();
            assert!(failure.sentence.ends_with("no such group"), "{failure}");
        }
        assert!(lookup("no-such-user").unwrap_err().sentence.contains("no such user"));
        assert!(lookup("3999999999").unwrap_err().details[0].contains(":GID"));
        let unknown = lookup("3999999999:5").unwrap();
        assert_eq!((unknown.uid, unknown.gid, unknown.name), (3_999_999_999, 5, None));
    }
}

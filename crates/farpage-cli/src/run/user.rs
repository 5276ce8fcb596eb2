//! `--user`: becomes another user for good.

use crate::failure::{Failure, Result, why};
use std::ffi::{CStr, CString};
use std::io;
use std::ptr;

/// Room for the strings of one passwd entry, and at first of a group.
const ENTRY_BYTES: usize = 16 * 1024;
/// Most room for a group: it lists its members.
const GROUP_BYTES_MAX: usize = 16 << 20;

/// Whom to become.
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

/// One passwd entry.
struct Entry {
    name: CString,
    uid: u32,
    gid: u32,
    home: String,
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
        gid_by_name(group)
            .or_else(|| id(group))
            .ok_or_else(|| Failure::new(format!("--user {text}: no such group")).help("list them    getent group"))
    });
    let gid = gid.transpose()?;
    let uid = id(who);
    // A name wins over a number, as for chown. So it is with groups.
    let entry = entry_by_name(who).or_else(|| entry_by_uid(uid?));
    match (entry, uid, gid) {
        (Some(entry), _, gid) => {
            let name = entry.name.to_string_lossy().into_owned();
            let env = vec![("HOME", entry.home), ("USER", name.clone()), ("LOGNAME", name)];
            Ok(User { uid: entry.uid, gid: gid.unwrap_or(entry.gid), name: Some(entry.name), env })
        }
        (None, Some(uid), Some(gid)) => Ok(User { uid, gid, name: None, env: Vec::new() }),
        (None, Some(uid), None) => Err(Failure::new(format!(
            "--user {text}: uid {uid} is not in the passwd database, so its group is unknown"
        ))
        .help(format!("name the group too    --user {uid}:GID"))),
        (None, None, _) => Err(Failure::new(format!("--user {text}: no such user")).help("list them    getent passwd")),
    }
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
    let fail = |what: &str| {
        Err(Failure::new(format!("--user: cannot {what} {}: {}", user.uid, why(&io::Error::last_os_error()))))
    };
    let groups = match &user.name {
        // SAFETY: `name` is a C string that lives through the call.
        Some(name) => unsafe { libc::initgroups(name.as_ptr(), user.gid) },
        // SAFETY: zero groups; the pointer is not read.
        None => unsafe { libc::setgroups(0, ptr::null()) },
    };
    if groups != 0 {
        return fail("set the groups of");
    }
    // SAFETY: changes ids only; this process has one thread.
    if unsafe { libc::setresgid(user.gid, user.gid, user.gid) } != 0 {
        return fail("set the group of");
    }
    // SAFETY: as above.
    if unsafe { libc::setresuid(user.uid, user.uid, user.uid) } != 0 {
        return fail("become");
    }
    // SAFETY: as above; it must fail.
    if user.uid != 0 && unsafe { libc::setuid(0) } == 0 {
        return Err(Failure::new(format!("--user: uid {} could become root again; not going on", user.uid)));
    }
    // Changing ids hides /proc/self from us; there is nothing of root's in this process but the device descriptor,
    // which the program is meant to have.
    // SAFETY: PR_SET_DUMPABLE takes one number.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) };
    Ok(())
}

fn entry_by_name(name: &str) -> Option<Entry> {
    let name = CString::new(name).ok().filter(|n| !n.is_empty())?;
    // SAFETY: the arguments are what getpwnam_r asks for; `name` lives through the call.
    entry(|pwd, buf, len, found| unsafe { libc::getpwnam_r(name.as_ptr(), pwd, buf, len, found) })
}

fn entry_by_uid(uid: u32) -> Option<Entry> {
    // SAFETY: the arguments are what getpwuid_r asks for.
    entry(|pwd, buf, len, found| unsafe { libc::getpwuid_r(uid, pwd, buf, len, found) })
}

fn entry(
    get: impl Fn(*mut libc::passwd, *mut libc::c_char, usize, *mut *mut libc::passwd) -> libc::c_int,
) -> Option<Entry> {
    // SAFETY: passwd consists of integers and pointers; all-zero is valid and overwritten below.
    let mut pwd: libc::passwd = unsafe { std::mem::zeroed() };
    let mut strings = vec![0; ENTRY_BYTES];
    let mut found = ptr::null_mut();
    if get(&mut pwd, strings.as_mut_ptr(), strings.len(), &mut found) != 0 || found.is_null() {
        return None;
    }
    // SAFETY: the entry was found, so its pointers lead to C strings in `strings`, which is alive.
    let (name, home) = unsafe { (CStr::from_ptr(pwd.pw_name), CStr::from_ptr(pwd.pw_dir)) };
    let home = home.to_string_lossy().into_owned();
    Some(Entry { name: name.to_owned(), uid: pwd.pw_uid, gid: pwd.pw_gid, home })
}

fn gid_by_name(name: &str) -> Option<u32> {
    let name = CString::new(name).ok().filter(|n| !n.is_empty())?;
    // SAFETY: group consists of an integer and pointers; all-zero is valid and overwritten below.
    let mut group: libc::group = unsafe { std::mem::zeroed() };
    let mut strings = vec![0; ENTRY_BYTES];
    loop {
        let mut found = ptr::null_mut();
        let (to, len) = (strings.as_mut_ptr(), strings.len());
        // SAFETY: the arguments are what getgrnam_r asks for; `name` and `strings` live through the call.
        match unsafe { libc::getgrnam_r(name.as_ptr(), &mut group, to, len, &mut found) } {
            0 if !found.is_null() => return Some(group.gr_gid),
            libc::ERANGE if len < GROUP_BYTES_MAX => strings.resize(len * 2, 0),
            _ => return None,
        }
    }
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

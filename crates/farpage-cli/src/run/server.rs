//! Swap devices on servers, before the program starts: names become numbers, passwords are found, and a server that
//! will not do is refused. And what a run has left there, after it.

use crate::failure::{Failure, OrCannot, Result};
use crate::trees::Tree;
use farpage::{DeviceKind, SwapSpec};
use farpage_device::DeviceError;
use farpage_device::space::build::resolve;
use farpage_ipc::conf::nbd::NbdSpec;
use farpage_ipc::conf::redis::{PasswordFrom, RedisSpec};
use farpage_server::HolderLease;
use farpage_server::nbd::Export;
use farpage_server::redis::server::{self, Server, ServerMemory};
use farpage_server::redis::sweep::{remove, sessions};
use std::fs::File;
use std::io::Read;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// What names this run.
fn tag() -> Result<u64> {
    let mut bytes = [0; 8];
    let random = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    random.or_cannot("read /dev/urandom")?;
    Ok(u64::from_ne_bytes(bytes))
}

/// A device that cannot be used.
pub fn failure(error: DeviceError) -> Failure {
    Failure::new(format!("--swap: cannot use {}: {}", error.name, error.reason)).help(error.remedy)
}

/// For all devices of a program: a password that was read from a descriptor, which the program would not have.
pub fn resolve_all(specs: &mut [SwapSpec]) -> Result<Option<Vec<u8>>> {
    let mut given = None;
    for spec in specs {
        if let DeviceKind::Redis(spec) = &mut spec.kind {
            if matches!(spec.password, Some(PasswordFrom::Descriptor(_))) {
                let read = spec.read_password();
                let read = read.map_err(|why| Failure::new(format!("--swap: {}: {why}", spec.name())))?;
                if given.is_some() && given != read {
                    return Err(Failure::new("--swap: two passwords by descriptors").help("use password-file=PATH"));
                }
                (given, spec.password) = (read, None);
            }
            if let Some(PasswordFrom::File(path)) = &mut spec.password {
                *path = std::path::absolute(&*path).unwrap_or_else(|_| path.clone());
            }
            spec.tag = Some(tag()?);
        }
        resolve(spec, given.as_deref()).map_err(failure)?;
    }
    Ok(given)
}

/// The program has ended: what it and its children have left goes, if none of them is there any more.
pub fn clean_up(specs: &[SwapSpec], exports: &[Export], password: Option<&[u8]>, tree: Option<&Tree>) {
    let is_there = |pid: u32| std::path::Path::new(&format!("/proc/{pid}")).exists();
    if tree.is_some_and(|tree| tree.segment.living().any(|member| is_there(member.pid.load(Relaxed)))) {
        return;
    }
    exports.iter().for_each(Export::empty);
    for spec in specs {
        let DeviceKind::Redis(spec) = &spec.kind else { continue };
        // What cannot be removed now can be later, by `farpage swapoff`.
        let Ok(server) = Server::of(spec, password) else { continue };
        let Some(known) = server.connect().ok().and_then(|()| sessions(&server).ok()) else { continue };
        for session in known.iter().filter(|session| spec.owns(&session.owner)) {
            remove(&server, &session.id, session.end);
        }
    }
}

/// Exports stay the program's, whatever it does: it may have no engine yet, or be stopped. When to call it again.
pub fn stay_owner(exports: &[Export]) -> Duration {
    // Where there is one connection, the program's own processes have it.
    for export in exports.iter().filter(|export| export.info().many()) {
        export.keep();
        export.link().close();
    }
    if exports.is_empty() { Duration::MAX } else { Duration::from_millis(HolderLease::USUAL.look_ms as u64) }
}

/// The same for a program that runs already.
pub fn resolve_for_running(specs: &mut [SwapSpec]) -> Result<()> {
    match resolve_all(specs)? {
        None => Ok(()),
        Some(_) => {
            let sentence = "--swap: a program that runs already cannot be given a password by a descriptor";
            Err(Failure::new(sentence).help("use password-file=PATH"))
        }
    }
}

/// The server of a device, which will do, and the device by numbers. `password`: unless it says where its own is.
pub fn open(spec: &RedisSpec, password: Option<&[u8]>) -> Result<(RedisSpec, Server, ServerMemory)> {
    server::resolve(spec, password, Server::open).map_err(failure)
}

/// Makes the exports of a program its own, and gives them to the caller, which gives them back. Their addresses are
/// numbers.
pub fn take_all(specs: &mut [SwapSpec]) -> Result<Vec<Export>> {
    let export = |spec: &'_ mut SwapSpec| match &mut spec.kind {
        DeviceKind::Nbd(spec) => Some(take(spec)),
        _ => None,
    };
    specs.iter_mut().filter_map(export).collect()
}

/// An export that will do: it holds nothing that is needed, and is this program's from now on.
pub fn take(spec: &mut NbdSpec) -> Result<Export> {
    let export = Export::of(spec, None).map_err(failure)?;
    spec.id = export.id();
    // The program has its own connections, and some servers allow one only.
    export.link().close();
    Ok(export)
}

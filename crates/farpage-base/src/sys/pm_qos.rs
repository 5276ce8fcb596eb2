//! How deeply idle CPUs may sleep: `/dev/cpu_dma_latency`, the kernel's interface for programs that cannot wait for
//! them to wake up (`Documentation/power/pm_qos_interface`). A request holds as long as its descriptor is open, so
//! nothing is left behind by a process that dies. It is for all CPUs: the idle ones look for work instead of sleeping.

use super::raw::Errno;
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};

/// The kernel's device for such requests; only root may write to it unless the administrator allows others to.
pub const DEVICE: &str = "/dev/cpu_dma_latency";
const DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// A request that can be made and taken back.
#[derive(Debug)]
pub struct LatencyRequest {
    device: OwnedFd,
    /// The longest time to wake up, in microseconds, that is asked for.
    most_us: i32,
}

impl LatencyRequest {
    /// Opens the device; nothing is asked for yet.
    ///
    /// # Errors
    /// `OPNOTSUPP`: CPUs have no driver that would heed it. Else the errno of opening the device: mostly `ACCESS`, or
    /// `NOENT` in a container.
    pub fn open() -> Result<LatencyRequest, Errno> {
        let mut driver = [0u8; 32];
        let most_us = match read_file(DRIVER, &mut driver)? {
            b"none" | b"" => return Err(Errno::OPNOTSUPP),
            // In a virtual machine: its governor heeds zero only.
            b"haltpoll" => 0,
            // The shallowest state of real CPUs, which are woken from it by a write to memory.
            _ => 2,
        };
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let device = openat(CWD, DEVICE, flags, Mode::empty())?;
        // The program may have another root by now.
        match FileType::from_raw_mode(fstat(&device)?.st_mode) {
            FileType::CharacterDevice => Ok(LatencyRequest { device, most_us }),
            _ => Err(Errno::NXIO),
        }
    }

    /// A request without effect.
    #[cfg(any(test, feature = "testing"))]
    pub fn to_nowhere() -> LatencyRequest {
        let device = openat(CWD, "/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
        LatencyRequest { device: device.expect("/dev/null can be opened"), most_us: 0 }
    }

    /// Makes the request, or takes it back. An error changes nothing for the better or the worse.
    pub fn set(&self, on: bool) {
        /// What the kernel takes for "no request", microseconds.
        const NONE: i32 = 2_000_000_000;
        let value = if on { self.most_us } else { NONE };
        let _ = rustix::io::write(&self.device, &value.to_ne_bytes());
    }
}

/// CPUs of the machine, about: one more than the highest number in use.
///
/// # Errors
/// As reading the kernel's list of them.
pub fn cpus_online() -> Result<usize, Errno> {
    let mut list = [0u8; 256];
    let last = read_file(ONLINE, &mut list)?.rsplit(|b| !b.is_ascii_digit()).next().unwrap_or_default();
    Ok(last.iter().fold(0, |n: usize, digit| n.saturating_mul(10).saturating_add(usize::from(digit - b'0'))) + 1)
}

/// The beginning of a file, without the line's end.
fn read_file<'a>(path: &str, buffer: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    // Whatever is there: it must not be waited for.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = openat(CWD, path, flags, Mode::empty())?;
    let read = rustix::io::read(&file, &mut *buffer)?;
    Ok(buffer[..read].trim_ascii_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_knows_the_wish_as_long_as_it_is_held() {
        assert!(cpus_online().unwrap() >= super::super::cpu::count());
        let request = match LatencyRequest::open() {
            Ok(request) => request,
            Err(error) => {
                assert!([Errno::ACCESS, Errno::PERM, Errno::NOENT, Errno::OPNOTSUPP].contains(&error), "{error:?}");
                return;
            }
        };
        // The smallest of all wishes, other programs' included: it can only be compared with ours.
        let smallest = || {
            let mut bytes = [0u8; 4];
            let device = openat(CWD, DEVICE, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
            assert_eq!(rustix::io::read(&device, &mut bytes).unwrap(), 4);
            i32::from_ne_bytes(bytes)
        };
        let before = smallest();
        request.set(true);
        assert!(smallest() <= request.most_us);
        request.set(false);
        request.set(true);
        drop(request);
        // Another test's process may have made a request meanwhile, so only this much is sure.
        assert!(smallest() <= before || before < 2);
    }
}

//! Calls about more memory than one call may hold, in pieces, each of which is held.
//!
//! To the program they are one call, as far as the kernel's promises go: a file or a pipe takes all of a write, unless
//! something stops it, and gives as much of a read as it has; what is not a file may give less, which a program must
//! expect. A datagram is never cut. A write that appends is made in one piece if so much can be held at all.
//!
//! Caller: [`crate::call`]. Allocates nothing.

use crate::call::{hold, whole};
use crate::held::Call;
use crate::parts::{self, Buffer, Header, MMSGHDR, Part, is_ours};
use crate::raw::raw;
use crate::state::memory;
use crate::table::{Access, Rule};
use linux_raw_sys::general as n;

/// Vectors of a piece.
const VECTORS: usize = 16;

/// What the descriptor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A regular file or a block device: a read that is short has come to its end.
    File,
    /// Packets, whole ones.
    Packets,
    /// Bytes that come when they come.
    Stream,
}

fn kind(fd: usize) -> Kind {
    // SAFETY: zero bits are a value, which the call fills.
    let (asked, stat) = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        (raw(n::__NR_fstat, &[fd, &raw mut stat as usize, 0, 0, 0, 0]), stat)
    };
    match stat.st_mode & libc::S_IFMT {
        _ if asked != 0 => Kind::Stream,
        libc::S_IFREG | libc::S_IFBLK => Kind::File,
        libc::S_IFSOCK => {
            let (mut of, mut len) = (0i32, 4u32);
            let args =
                [fd, libc::SOL_SOCKET as usize, libc::SO_TYPE as usize, &raw mut of as usize, &raw mut len as usize, 0];
            // SAFETY: the two are as long as is said.
            let asked = unsafe { raw(n::__NR_getsockopt, &args) };
            if asked == 0 && of != libc::SOCK_STREAM { Kind::Packets } else { Kind::Stream }
        }
        _ => Kind::Stream,
    }
}

fn appends(fd: usize) -> bool {
    // SAFETY: asks for flags.
    let flags = unsafe { raw(n::__NR_fcntl, &[fd, libc::F_GETFL as usize, 0, 0, 0, 0]) };
    flags >= 0 && flags as i32 & libc::O_APPEND != 0
}

/// Most bytes at an address that a call holds at once.
fn most(addr: usize) -> usize {
    memory().map_or(usize::MAX, |memory| memory.most(addr).max(4096))
}

/// What a call in pieces has done so far.
struct Progress {
    access: Access,
    kind: Kind,
    /// A read waits until it has all.
    waits: bool,
    done: usize,
}

impl Progress {
    /// After a piece of `asked` bytes: what the whole call returns, if that was the last one.
    fn after(&mut self, result: isize, asked: usize) -> Option<isize> {
        if result < 0 {
            return Some(if self.done > 0 { self.done as isize } else { result });
        }
        self.done += result as usize;
        let goes_on = result as usize == asked && (!self.access.writes() || self.kind == Kind::File || self.waits);
        if goes_on { None } else { Some(self.done as isize) }
    }
}

/// `read`, `write` and the like.
pub fn stream(call: &Call, nr: u32, rule: &Rule, args: &[usize; 6]) -> isize {
    let (addr, len) = (args[1], args[2]);
    if !is_ours(addr) || len <= most(addr) {
        return whole(call, nr, rule, args);
    }
    let access = rule.pointers[0].2;
    let kind = kind(args[0]);
    if kind == Kind::Packets || access == Access::In && appends(args[0]) {
        if hold(call, Part { addr, len, access }) == len || kind == Kind::Packets {
            return whole(call, nr, rule, args);
        }
        call.end();
    }
    let waits = nr == n::__NR_recvfrom && args[3] & libc::MSG_WAITALL as usize != 0;
    let mut progress = Progress { access, kind, waits, done: 0 };
    loop {
        let mut piece = *args;
        piece[1] = addr + progress.done;
        let want = (len - progress.done).min(most(addr));
        let held = hold(call, Part { addr: piece[1], len: want, access });
        piece[2] = if held > 0 { held } else { want };
        if matches!(nr, n::__NR_pread64 | n::__NR_pwrite64) {
            piece[3] += progress.done;
        } else {
            parts::direct(rule, args, &mut |part| {
                if part.addr != addr {
                    hold(call, part);
                }
            });
        }
        // SAFETY: the program's own call, about a part of its buffer.
        let result = unsafe { call.make(nr, &piece) };
        call.end();
        let over = progress.after(result, piece[2]);
        match over {
            Some(result) => return result,
            None if progress.done == len => return len as isize,
            None => {}
        }
    }
}

/// Where in an array of buffers a call has come to.
struct Cursor {
    array: usize,
    count: usize,
    index: usize,
    /// Bytes of that buffer that are done.
    done: usize,
}

impl Cursor {
    /// The next buffers, up to `most` bytes: how many, and how many bytes.
    fn next(&self, most: usize, to: &mut [Buffer; VECTORS]) -> (usize, usize) {
        let (mut n, mut bytes, mut done) = (0, 0, self.done);
        for i in self.index..self.count {
            // SAFETY: an array of buffers, as the call takes it.
            let Some((addr, len)) = (unsafe { parts::entry::<Buffer>(self.array, i) }) else { break };
            let len = (len - done.min(len)).min(most - bytes);
            to[n] = (addr + done, len);
            (n, bytes, done) = (n + 1, bytes + len, 0);
            if n == VECTORS || bytes == most {
                break;
            }
        }
        (n, bytes)
    }

    /// So many bytes are done.
    fn advance(&mut self, mut bytes: usize) {
        while self.index < self.count {
            // SAFETY: as above.
            let Some((_, len)) = (unsafe { parts::entry::<Buffer>(self.array, self.index) }) else { return };
            let left = len - self.done.min(len);
            if bytes < left {
                self.done += bytes;
                return;
            }
            (bytes, self.index, self.done) = (bytes - left, self.index + 1, 0);
        }
    }
}

/// Bytes of ours in an array of buffers, the largest memory's `most`, and how many buffers.
fn ours(array: usize, count: usize) -> (usize, usize, usize) {
    let (mut bytes, mut limit, mut n) = (0usize, usize::MAX, 0);
    parts::vector(array, count, Access::In, &mut |part| {
        if is_ours(part.addr) {
            (bytes, limit, n) = (bytes.saturating_add(part.len), limit.min(most(part.addr)), n + 1);
        }
    });
    (bytes, limit, n)
}

/// Makes a call about an array of buffers in pieces: `make` makes one, of so many buffers, after so many bytes.
fn buffers(
    call: &Call,
    progress: &mut Progress,
    cursor: &mut Cursor,
    limit: usize,
    make: &mut dyn FnMut(&[Buffer], usize) -> isize,
) -> isize {
    loop {
        let mut buffers = [(0, 0); VECTORS];
        let (n, asked) = cursor.next(limit, &mut buffers);
        buffers[..n].iter().for_each(|&(addr, len)| _ = hold(call, Part { addr, len, access: progress.access }));
        let result = make(&buffers[..n], progress.done);
        call.end();
        if let Some(result) = progress.after(result, asked) {
            return result;
        }
        cursor.advance(result as usize);
        if cursor.index >= cursor.count {
            return progress.done as isize;
        }
    }
}

/// `readv`, `writev` and the like.
pub fn vector(call: &Call, nr: u32, rule: &Rule, args: &[usize; 6], access: Access) -> isize {
    let (array, count) = (args[1], args[2]);
    let (bytes, limit, n) = ours(array, count);
    if count > parts::VECTORS_MAX || bytes <= limit && n <= VECTORS * 16 {
        return whole(call, nr, rule, args);
    }
    let kind = kind(args[0]);
    if kind == Kind::Packets || access == Access::In && appends(args[0]) {
        let mut all = 0;
        parts::vector(array, count, access, &mut |part| all += hold(call, part));
        if all >= bytes || kind == Kind::Packets {
            return whole(call, nr, rule, args);
        }
        call.end();
    }
    let has_offset = matches!(nr, n::__NR_preadv | n::__NR_pwritev)
        || matches!(nr, n::__NR_preadv2 | n::__NR_pwritev2) && args[3] != usize::MAX;
    let mut progress = Progress { access, kind, waits: false, done: 0 };
    let mut cursor = Cursor { array, count, index: 0, done: 0 };
    buffers(call, &mut progress, &mut cursor, limit, &mut |buffers, done| {
        let mut piece = *args;
        (piece[1], piece[2]) = (buffers.as_ptr() as usize, buffers.len());
        if has_offset {
            piece[3] += done;
        }
        // SAFETY: the program's own call, about a part of its buffers.
        unsafe { call.make(nr, &piece) }
    })
}

/// `sendmsg`, `recvmsg`.
pub fn message(call: &Call, nr: u32, rule: &Rule, args: &[usize; 6], access: Access) -> isize {
    // SAFETY: a header, as the call takes it.
    let Some(header) = (unsafe { parts::read::<Header>(args[1]) }) else { return whole(call, nr, rule, args) };
    let (bytes, limit, n) = ours(header.array, header.count);
    let fits = bytes <= limit && n <= VECTORS * 16;
    if fits || header.count > parts::VECTORS_MAX || kind(args[0]) != Kind::Stream {
        return whole(call, nr, rule, args);
    }
    let waits = args[2] & libc::MSG_WAITALL as usize != 0;
    let mut progress = Progress { access, kind: Kind::Stream, waits, done: 0 };
    let mut cursor = Cursor { array: header.array, count: header.count, index: 0, done: 0 };
    let mut part = header;
    buffers(call, &mut progress, &mut cursor, limit, &mut |buffers, done| {
        hold(call, Part { addr: part.name, len: part.name_len as usize, access });
        hold(call, Part { addr: part.control, len: part.control_len, access });
        (part.array, part.count) = (buffers.as_ptr() as usize, buffers.len());
        let piece = [args[0], &raw mut part as usize, args[2], 0, 0, 0];
        // SAFETY: the program's own call, about a part of its buffers.
        let result = unsafe { call.make(nr, &piece) };
        if access.writes() && result >= 0 && done == 0 {
            let said = Header { array: header.array, count: header.count, ..part };
            // SAFETY: the program's own header, which the call writes.
            unsafe { std::ptr::write_unaligned(args[1] as *mut Header, said) };
        }
        // Descriptors and addresses go, or come, with the first bytes.
        (part.name, part.name_len, part.control, part.control_len) = (0, 0, 0, 0);
        result
    })
}

/// `sendmmsg`, `recvmmsg`: as many messages as can be held, at least one.
pub fn messages(call: &Call, nr: u32, rule: &Rule, args: &[usize; 6], access: Access) -> isize {
    let mut held = 0usize;
    let mut count = 0;
    parts::direct(rule, args, &mut |part| _ = hold(call, part));
    while count < args[2].min(parts::VECTORS_MAX) {
        let (mut wanted, mut got, mut limit) = (0usize, 0, usize::MAX);
        parts::message(args[1].wrapping_add(count * MMSGHDR), access, &mut |part| {
            if is_ours(part.addr) {
                (wanted, limit) = (wanted.saturating_add(part.len), limit.min(most(part.addr)));
                got += hold(call, part);
            }
        });
        held += got;
        if count > 0 && (got < wanted || held > limit) {
            break;
        }
        count += 1;
    }
    let mut piece = *args;
    piece[2] = if args[2] > parts::VECTORS_MAX { args[2] } else { count };
    // SAFETY: the program's own call, about some of its messages.
    let result = unsafe { call.make(nr, &piece) };
    call.end();
    result
}

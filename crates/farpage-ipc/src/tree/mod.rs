//! The budget of a tree: all processes that were started under one `farpage run`.
//!
//! The launcher makes a *segment*, a memfd of fixed size that every process of the tree inherits and maps. Each process
//! that has the library is a *member* with a place in it; what it may hold is its claim ([`farpage_swap::claims`]).
//! There is no server and no lock: members read what the others say of themselves, and decide alike.
//!
//! | file | what |
//! | --- | --- |
//! | here | the segment: how it is made, found and mapped, and the places in it |
//! | `member` | what a process says of itself |
//! | [`areas`] | which process has which part of an export |
//! | [`excess`] | whether the tree will stay above its budget |
//! | [`joining`] | how a process takes its place |
//! | [`strangers`] | processes without the library, and what ended members have left |
//! | `still` | processes without an engine that sleep claim what they have |
//! | [`sums`] | what all processes have counted, also those that have ended |
//! | [`largest`] | the processes that had most, also when they have ended |
//! | [`mapped`] | a segment of others, mapped for a while |
//!
//! A process that can read another can read its segment, and each member can write all of it, at any moment. So the
//! size is sealed, every number that is read is clamped ([`ClampedPages`]), and there is no pointer in it: a member
//! that lies can take memory or refuse to give it, as it could without, and make others slow; it cannot crash or read
//! another.
//!
//! Callers: `run`, which makes its budget of what it gets here; the command. No locks. In this process there is one
//! segment, mapped for good, and one place ([`mine`]).

pub mod areas;
pub mod excess;
pub mod joining;
pub mod largest;
pub mod mapped;
mod member;
mod still;
pub mod strangers;
pub mod sums;

use crate::conf;
use crate::conf::nbd::ExportId;
use areas::Owners;
use farpage_base::sys::clock::now_us;
use farpage_base::sys::descriptor::FileId;
use farpage_base::sys::futex;
use farpage_base::sys::raw::Errno;
use farpage_base::sys::thread::without_signal;
use farpage_swap::PAGE_SIZE;
use farpage_swap::claims;
use largest::Largest;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;
use sums::Sums;

pub use member::{ClampedPages, Member, MemberKind};

/// Names the segment's descriptor for programs that are started: `NUMBER:DEVICE:INODE`.
pub const ENV_TREE_FD: &str = "FARPAGE_TREE_FD";
/// As `/proc/PID/fd` shows it.
pub const SEGMENT_NAME: &str = "farpage-tree";
/// The first word of a segment, with its layout's version.
const MAGIC: u64 = u64::from_le_bytes(*b"farpagT7");
/// Processes of a tree that can be members at the same time: a pass over so many takes 14 us. Places that were never
/// taken are no memory.
pub const MEMBERS: usize = 4096;
/// What a forked child of a process with managed memory copies before others see it and make room: this part of the
/// budget, at least and at most so many pages.
const CHILD_PART: u64 = 6;
const CHILD_LEAST: u64 = 2048;
const CHILD_MOST: u64 = 4096;
/// How long a fork waits for them at most, microseconds.
const CHILD_WAIT_US: u64 = 500_000;
/// How long they are kept at most: the wait and a fork.
const CHILD_MOST_US: u64 = 1_000_000;
/// What is said of the tree. Pages.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Header {
    magic: AtomicU64,
    budget: ClampedPages,
    /// What one process may have at most.
    each: ClampedPages,
    /// Places from 0 to this one were ever taken.
    used_places: AtomicU32,
    /// Warnings that were given, a bit each.
    said: AtomicU32,
    /// When it was made, microseconds.
    begun_us: AtomicU64,
    /// When a member last looked after processes that cannot do so themselves, microseconds.
    swept_us: AtomicU64,
    /// Since when the tree has been above its budget, microseconds; 0: it is not.
    over_since_us: AtomicU64,
    /// When a process was last chosen to look, microseconds.
    chosen_us: AtomicU64,
    /// The place of the next process to look at that may be still.
    next_still: AtomicU32,
    /// The largest sum that was seen.
    pub peak: ClampedPages,
    /// Pages that have left the memory of any member: the clock by which all say how old theirs are.
    departures: AtomicU64,
    /// How often a member got less than it wanted, and how often one gave.
    pub refused: AtomicU64,
    /// See [`Header::refused`].
    pub gives: AtomicU64,
    /// Looks at which strangers had much, one after the other.
    strangers_looks: AtomicU32,
    /// The largest sum of strangers.
    pub strangers_peak: ClampedPages,
    /// Processes that were members so far.
    pub joined: AtomicU64,
    /// Those that had most.
    pub largest: Largest,
    /// What all have counted.
    pub sums: Sums,
    /// The process that made it, and becomes the first program, unless it stays as that one's parent.
    maker: AtomicU32,
}

/// The whole of it.
#[repr(C)]
#[derive(Debug)]
pub struct Segment {
    /// What is said of the tree.
    pub header: Header,
    members: [Member; MEMBERS],
    exports: areas::Exports,
}

impl Header {
    /// Whether there was more than one process.
    pub fn has_several(&self) -> bool {
        self.joined.load(Relaxed) > 1
    }

    /// Since when there is a tree.
    pub fn age(&self) -> Duration {
        Duration::from_micros(now_us().saturating_sub(self.begun_us.load(Relaxed)))
    }
}

const BYTES: usize = size_of::<Segment>();
const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

static SEGMENT: AtomicPtr<Segment> = AtomicPtr::new(std::ptr::null_mut());
/// This process's place, plus one.
static MINE: AtomicU32 = AtomicU32::new(0);
/// The process that has that place: a child that shares this memory (`vfork`) has none.
static HOME: AtomicU32 = AtomicU32::new(0);

/// The tree's clock begins here, so that a member that uses nothing of what it has (its pages were last seen at 0) is
/// older than any other.
const CLOCK_BEGIN: u64 = 1 << 32;

/// A tree without a budget for all.
pub const UNLIMITED: u64 = 1 << 50;

/// Makes the segment of a tree with a budget of `bytes`, of which each process may have `each` at most. By the
/// launcher.
///
/// # Errors
/// The kernel has no memory or no descriptor for it, or a limit on the size of files is below [`Segment`]'s.
pub fn create(bytes: u64, each: Option<u64>) -> Result<OwnedFd, Errno> {
    let fd = memfd_create(SEGMENT_NAME, MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL)?;
    let resize = || without_signal(libc::SIGXFSZ, || rustix::fs::ftruncate(&fd, BYTES as u64));
    resize().or_else(|why| with_large_files(resize).map_err(|_| why))?;
    fcntl_add_seals(&fd, SIZE_SEALS | SealFlags::SEAL)?;
    let segment = map(fd.as_fd())?;
    segment.header.each.store(each.unwrap_or(UNLIMITED) / PAGE_SIZE as u64);
    segment.set_budget(bytes);
    segment.header.begun_us.store(now_us(), Relaxed);
    segment.header.maker.store(std::process::id(), Relaxed);
    segment.header.departures.store(CLOCK_BEGIN, Relaxed);
    segment.header.magic.store(MAGIC, SeqCst);
    Ok(fd)
}

/// A limit on the size of files (`ulimit -f`) is for this memory, too: it is raised for a moment, where that is
/// allowed.
fn with_large_files(act: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
    let before = getrlimit(Resource::Fsize);
    let enough = |limit: Option<u64>| limit.map(|limit| limit.max(BYTES as u64));
    let raised = Rlimit { current: enough(before.current), maximum: enough(before.maximum) };
    setrlimit(Resource::Fsize, raised)?;
    let result = act();
    setrlimit(Resource::Fsize, before)?;
    result
}

/// This process, which is in the tree of `outer`, is about to become the first of a tree within it, with a budget of
/// `bytes`: claims as much of the outer one. The bytes that it may have. By the launcher.
pub fn nest(outer: &Segment, bytes: u64) -> u64 {
    let (pid, namespace) = (std::process::id(), own_namespace());
    let mine = outer.living().find(|m| m.is(pid, namespace));
    let mine = mine.or_else(|| outer.take(pid, pid, namespace, MemberKind::Nested).map(|place| &outer.members[place]));
    let Some(mine) = mine else { return bytes };
    // First: from here on only this function changes the claim.
    mine.set_kind(MemberKind::Nested);
    let (has, page) = (mine.claim.held(), PAGE_SIZE as u64);
    let want = (bytes / page).saturating_sub(has);
    (has + outer.grow(mine, want)) * page
}

/// This process was forked by one that has a tree of its own now ([`nest`]), which claims for it.
pub fn is_in_nest(outer: &Segment) {
    let (pid, namespace) = (std::process::id(), own_namespace());
    let mine = outer.living().filter(|m| m.is(pid, namespace));
    mine.for_each(|m| {
        m.set_kind(MemberKind::Nested);
        m.claim.set(0);
    });
}

/// A segment of another process, mapped for good. By the launcher; a command that only looks at it uses [`mapped`].
///
/// # Errors
/// `INVAL`: it is none. Else as mmap.
pub fn open(fd: BorrowedFd<'_>) -> Result<&'static Segment, Errno> {
    if !is_segment(fd) {
        return Err(Errno::INVAL);
    }
    let segment = map(fd)?;
    match segment.header.magic.load(SeqCst) {
        MAGIC => Ok(segment),
        _ => {
            // SAFETY: mapped above, and no reference to it is left.
            unsafe { munmap(std::ptr::from_ref(segment).cast_mut().cast(), BYTES) }?;
            Err(Errno::INVAL)
        }
    }
}

fn map(fd: BorrowedFd<'_>) -> Result<&'static Segment, Errno> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { mmap(std::ptr::null_mut(), BYTES, prot, MapFlags::SHARED, fd, 0) }?;
    // SAFETY: mapped for good, of this size, which is sealed; atomics only, for which any bytes are values.
    Ok(unsafe { &*at.cast::<Segment>() })
}

/// Whether a descriptor from elsewhere is a segment that may be mapped.
fn is_segment(fd: BorrowedFd<'_>) -> bool {
    let sealed = fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SIZE_SEALS));
    sealed && fstat(fd).is_ok_and(|stat| stat.st_size == BYTES as i64)
}

/// What [`ENV_TREE_FD`] is to say of a descriptor.
///
/// # Errors
/// As fstat.
pub fn named(fd: BorrowedFd<'_>) -> Result<String, Errno> {
    FileId::of(fd).map(|file| format!("{}:{}:{}", fd.as_raw_fd(), file.device, file.inode))
}

/// What [`ENV_TREE_FD`] says, if it is still true.
pub fn inherited() -> Option<(RawFd, FileId)> {
    let given = conf::variable(ENV_TREE_FD)?;
    let mut parts = given.splitn(3, ':');
    let fd: RawFd = parts.next()?.parse().ok()?;
    let file = FileId { device: parts.next()?.parse().ok()?, inode: parts.next()?.parse().ok()? };
    file.is_at(fd).then_some((fd, file))
}

fn set_place(place: Option<usize>, pid: u32) -> bool {
    MINE.store(place.map_or(0, |place| place as u32 + 1), SeqCst);
    HOME.store(pid, SeqCst);
    place.is_some()
}

/// This process wants its file of a swap device to have `end` slots, of `most` that all processes of the tree have
/// there together: how many it gets.
pub fn grow_file(device: u8, end: u64, most: u64) -> u64 {
    match (segment(), place()) {
        (Some(segment), Some(mine)) => segment.grow_file(mine, device.into(), end, most),
        _ => end,
    }
}

/// A thread of this process has waited for memory for so long, up to now.
pub fn note_waited(time: Duration) {
    if let Some(segment) = segment() {
        segment.header.sums.note_waited(time);
    }
}

/// The process ends.
pub fn leave() {
    if let Some(member) = mine() {
        member.claim.leave();
    }
}

/// This process belongs to no tree any more. What others of its threads look at now stays mapped.
pub fn forget() {
    leave();
    MINE.store(0, SeqCst);
    SEGMENT.store(std::ptr::null_mut(), SeqCst);
}

/// Where the owners of the areas of this export are noted; `None`: this process is in no tree, or there is no room.
pub fn export_owners(id: ExportId) -> Option<&'static Owners> {
    segment()?.exports.owners(id)
}

/// The segment of this process's tree.
pub fn segment() -> Option<&'static Segment> {
    // SAFETY: null, or mapped for good.
    unsafe { SEGMENT.load(SeqCst).as_ref() }
}

/// This process's place.
pub fn mine() -> Option<&'static Member> {
    place().filter(|_| HOME.load(SeqCst) == std::process::id())
}

/// The place that was this process's, or that of the process that it was forked from. By callers that know which:
/// engine threads, which a child of `vfork` does not have, and a forked child before [`joining::fork_child`].
pub fn place() -> Option<&'static Member> {
    let place = MINE.load(SeqCst).checked_sub(1)?;
    segment().and_then(|segment| segment.members.get(place as usize))
}

/// Whether this process is in a tree that had no place for it. Not in a child of `vfork`.
pub fn is_without_place() -> bool {
    segment().is_some() && mine().is_none()
}

/// The inode of the caller's pid namespace; 0: not to be found out.
fn own_namespace() -> u64 {
    rustix::fs::stat("/proc/self/ns/pid").map_or(0, |stat| stat.st_ino)
}

impl Segment {
    /// The tree's budget, pages.
    pub fn budget(&self) -> u64 {
        self.header.budget.load()
    }

    /// What one process may have at most, pages.
    pub fn most_of_one(&self) -> u64 {
        self.budget().min(self.header.each.load())
    }

    /// Gives it another one, of `bytes`. Members see it at their next look, at the latest in a fraction of a second.
    pub fn set_budget(&self, bytes: u64) {
        self.header.budget.store(bytes / PAGE_SIZE as u64);
        self.wake_all();
    }

    fn wake_all(&self) {
        self.places().filter(|m| m.claim.is_live()).for_each(Member::ring);
    }

    /// Places that were ever taken.
    pub fn places(&self) -> impl Iterator<Item = &Member> {
        self.places_taken().iter()
    }

    fn places_taken(&self) -> &[Member] {
        let used = self.header.used_places.load(SeqCst) as usize;
        &self.members[..used.min(MEMBERS)]
    }

    /// Members that live.
    pub fn living(&self) -> impl Iterator<Item = &Member> {
        self.places().filter(|m| m.claim.is_live())
    }

    /// For tests of other modules: takes a place.
    #[cfg(any(test, feature = "testing"))]
    pub fn take_for_test(&self, pid: u32, kind: MemberKind) -> bool {
        self.take(pid, pid, own_namespace(), kind).is_some()
    }

    /// From outside: a process without the library counts from now on. Its id is as the caller sees it.
    pub fn counts_too(&self, pid: u32) {
        let namespace = own_namespace();
        if !self.living().any(|m| m.is(pid, namespace)) {
            self.take(pid, pid, namespace, MemberKind::Stranger);
            self.wake_all();
        }
    }

    /// Takes a free place.
    fn take(&self, owner: u32, pid: u32, namespace: u64, kind: MemberKind) -> Option<usize> {
        let now = now_us();
        for place in 0..MEMBERS {
            self.header.used_places.fetch_max(place as u32 + 1, SeqCst);
            let member = &self.members[place];
            if member.claim.take(owner, now) {
                self.header.joined.fetch_add(1, Relaxed);
                member.begin(pid, namespace, kind);
                return Some(place);
            }
        }
        None
    }

    /// A member of this process that no thread uses, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn member_for_test(&self, pid: u32) -> &Member {
        &self.members[self.take(pid, pid, 1, MemberKind::Managed).unwrap()]
    }

    /// All that is claimed, also for children that are about to be forked.
    pub fn claimed(&self) -> u64 {
        let sum = claims::total(self.places().map(|m| &m.claim), self.budget().max(1) * 4, now_us());
        self.header.peak.at_least(sum);
        sum + self.for_children()
    }

    /// `child` pays from now on for so many pages that the process which has forked it has paid for.
    pub fn takes_over(&self, child: &Member, pages: u64) {
        child.took_over.store(child.took_over.load() + pages);
        let (parent, namespace) = (child.parent.load(SeqCst), child.namespace.load(Relaxed));
        if let Some(parent) = self.living().find(|m| m.is(parent, namespace)) {
            parent.ring();
        }
    }

    /// Pages that `parent` has paid for, and children of its that live have taken over. One that ends, or becomes
    /// another program, pays for none of them any more.
    pub fn taken_over_from(&self, parent: &Member) -> u64 {
        let (pid, namespace) = (parent.pid.load(Relaxed), parent.namespace.load(Relaxed));
        let is_child = |m: &&Member| m.parent.load(SeqCst) == pid && m.namespace.load(Relaxed) == namespace;
        self.living().filter(is_child).fold(0, |sum, child| sum.saturating_add(child.took_over.load()))
    }

    /// What is kept free for one child.
    fn for_a_child(&self) -> u64 {
        (self.budget() / CHILD_PART).clamp(CHILD_LEAST, CHILD_MOST)
    }

    fn for_children(&self) -> u64 {
        let now = now_us();
        let forks = |m: &&Member| (now..now + CHILD_MOST_US).contains(&m.for_child_until_us.load(Relaxed));
        self.living().filter(forks).count() as u64 * self.for_a_child()
    }

    /// What processes could fill that have the library and no engine.
    pub fn dormant(&self) -> u64 {
        self.living().fold(0, |sum, member| sum.saturating_add(member.could_fill()))
    }

    /// `member` wants so many pages more; how many it gets.
    pub fn grow(&self, member: &Member, want: u64) -> u64 {
        let limit = self.budget().saturating_sub(self.for_children());
        claims::grow(&member.claim, self.places().map(|m| &m.claim), limit, want, now_us())
    }

    /// `member` is about to fork a child, which has what its parent has, and will need some pages of its own: keeps
    /// them free, for the fork at most, and waits for a while until they are there. Whether they are.
    pub fn wait_for_room_of_child(&self, member: &Member) -> bool {
        let since = now_us();
        member.for_child_until_us.store(since + CHILD_MOST_US - 1, SeqCst);
        if self.claimed() > self.budget() {
            self.wake_all();
        }
        while self.claimed() > self.budget() {
            if now_us() - since > CHILD_WAIT_US {
                return false;
            }
            futex::wait(&AtomicU32::new(0), 0, Some(5_000_000));
        }
        true
    }

    /// See [`grow_file`]. As with claims ([`claims`]), it is published first and looked at then.
    fn grow_file(&self, member: &Member, device: usize, end: u64, most: u64) -> u64 {
        let Some(slots) = member.files.get(device) else { return end };
        let end = end.min(most);
        let had = slots.swap(end);
        let all = self.living().fold(0u64, |sum, m| sum.saturating_add(m.files[device].load().min(most)));
        let granted = end.saturating_sub(all.saturating_sub(most)).max(had.min(end));
        slots.store(granted);
        granted
    }

    /// `pages` have left the memory of this process: the tree's clock, which counts what has left any member.
    pub fn departed(&self, pages: u64) -> u64 {
        self.header.departures.fetch_add(pages, Relaxed).wrapping_add(pages)
    }

    /// How many pages have left since the page that this member would give next was last seen in use.
    pub fn age_of(&self, member: &Member) -> u64 {
        self.header.departures.load(Relaxed).saturating_sub(member.seen.load(Relaxed))
    }

    /// More is claimed than there is, and no process looks: whether the calling one is to. One in a second at most.
    pub fn needs_a_watch(&self) -> bool {
        const ONE_US: u64 = 1_000_000;
        let (now, chosen) = (now_us(), self.header.chosen_us.load(SeqCst));
        self.claimed() > self.budget()
            && !self.living().any(|m| m.is_looking(now))
            && now.abs_diff(chosen) > ONE_US
            && self.header.chosen_us.compare_exchange(chosen, now, SeqCst, SeqCst).is_ok()
    }

    /// Pages that no member claims.
    pub fn free(&self) -> u64 {
        self.budget().saturating_sub(self.claimed())
    }

    /// Whether the process is the one that made the tree.
    pub fn is_first(&self, pid: u32) -> bool {
        self.header.maker.load(Relaxed) == pid
    }

    /// Whether any process of the tree has noted that ([`Segment::note_said`]).
    pub fn is_said(&self, bit: u32) -> bool {
        self.header.said.load(SeqCst) & bit != 0
    }

    /// Notes that the warnings of these bits are given; whether they were before.
    pub fn note_said(&self, bits: u32) -> bool {
        self.header.said.fetch_or(bits, SeqCst) & bits == bits
    }
}

#[cfg(test)]
mod tests;

//! The engine's second start, in a forked child: same memory, new userfaultfd.
//!
//! Runs on the child's monitor thread while the program's only thread waits in the atfork handler, so nothing changes
//! underneath. The inherited words are right for every mapping that is still the one they were kept for; what other
//! threads of the parent changed in the last moment are the pending events (see [`crate::fork`]).

use super::pending_events::PendingEvents;
use crate::pager::bring_in::found_present;
use crate::pager::start::{PagerParts, make_pager, open, run_pager};
use crate::pager::state::Pager;
use crate::shared::address_space::AddressSpace;
use crate::shared::page_table::State;
use crate::shared::start_error::StartError;
use crate::shared::state::Engine;
use crate::shared::{given_uffds, uffd_device};
use farpage_base::mem::lock::lock;
use farpage_base::mem::page_ranges::PageRanges;
use farpage_base::mem::units::Vpn;
use farpage_base::sys::futex;
use farpage_base::sys::maps::{Kind, mappings, wiped_mappings};
use farpage_base::sys::message::fatal;
use farpage_base::sys::pagemap::PageKind;
use farpage_base::sys::pass::receive_all;
use farpage_base::sys::proc::{self, Proc};
use farpage_base::sys::raw::Errno;
use farpage_base::sys::uffd::Message;
use rustix::fd::{BorrowedFd, RawFd};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Stack that the handlers in the child may use.
const DEAD_STACK: usize = 256 * 1024;

/// In a child, on its monitor thread, before anything else: takes over what the parent's engine has given, by the
/// numbers that it has here.
///
/// # Errors
/// `MFILE`: the limit on open files is too low. `BADF`: nothing was given.
pub fn inherit(e: &Engine) -> Result<(), Errno> {
    let end = e.fork.inherited_end();
    if end < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: open in this table, which is the engine's own.
    let given = receive_all(unsafe { BorrowedFd::borrow_raw(end) })?;
    let here = |fd: RawFd| given.iter().find(|(old, _)| *old == fd).map_or(-1, |(_, new)| *new);
    e.space.fork_child(&given);
    uffd_device::set_number(uffd_device::number().map_or(-1, here));
    proc::hold(here(proc::held_number()));
    let mut held = lock(&e.fork.held);
    held.iter_mut().for_each(|fd| *fd = here(*fd));
    held.push(end);
    held.retain(|fd| *fd >= 0);
    Ok(())
}

/// What a child's pager will need, or that, once there is something for it to do.
enum Beginning {
    Parts(PagerParts),
    Pager(Box<Pager>),
}

impl Beginning {
    fn mm(&self) -> &dyn AddressSpace {
        match self {
            Beginning::Parts(parts) => parts.mm(),
            Beginning::Pager(pager) => &*pager.cx.mm,
        }
    }

    fn pager(self, e: &'static Engine, proc: &'static Proc) -> Result<Box<Pager>, StartError> {
        match self {
            Beginning::Parts(parts) => make_pager(e, parts, proc),
            Beginning::Pager(pager) => Ok(pager),
        }
    }

    /// The words learn what has happened.
    fn apply(self, e: &'static Engine, proc: &'static Proc, event: Message) -> Result<Beginning, StartError> {
        let mut pager = self.pager(e, proc)?;
        pager.adoption.apply(&mut pager.cx, event);
        Ok(Beginning::Pager(pager))
    }
}

/// In a child, on its monitor thread: makes the inherited state work again, and lets the program go on. What is to be
/// given to [`start_late`] then.
pub fn start_as_child(e: &'static Engine, proc: &'static Proc) -> Option<PagerParts> {
    // SAFETY: open in this table since `inherit`.
    let end = unsafe { BorrowedFd::borrow_raw(e.fork.inherited_end()) };
    let given = || {
        let pagemap = proc.private_file("thread-self/pagemap");
        let pagemap = pagemap.map_err(|e| StartError::Proc("open /proc/self/pagemap", e.into()))?;
        given_uffds::receive(end, &e.arena, pagemap)
    };
    let given = if given_uffds::are_forks_told() { given() } else { Ok(()) };
    let pending = PendingEvents::receive(end);
    let parts = given.and_then(|()| activate_child(e, proc, &pending)).unwrap_or_else(|why| end_child(&why));
    match parts {
        Some(_) => {
            e.discovery.charges.allow(e.large() as u64);
            e.stage.active.store(true, SeqCst);
            e.fork.child.is_late.store(true, SeqCst);
        }
        None => e.fork.child.starts.store(false, SeqCst),
    }
    e.fork.child.ready.store(1, SeqCst);
    futex::wake_all(&e.fork.child.ready);
    parts
}

/// On the same thread: the pager runs, and the writer, when something is told or asked for, or the child has lived for
/// so long without. Many a child has ended or become another program by then, and each page that a thread of ours
/// writes to is copied.
pub fn start_late(e: &'static Engine, proc: &'static Proc, parts: PagerParts, late: Duration) {
    parts.wait(late);
    e.fork.child.is_late.store(false, SeqCst);
    if let Err(why) = make_pager(e, parts, proc).and_then(|pager| run_pager(e, pager)) {
        end_child(&why);
    }
    e.fork.child.starts.store(false, SeqCst);
}

fn end_child(why: &StartError) -> ! {
    fatal(&format!("in a forked child, whose swapped-out memory would be lost: {why}"))
}

/// Registers the memory of a child whose parent's engine was active, as its words say. What the pager needs, if there
/// is nothing to be done for it yet; else it runs.
///
/// # Errors
/// Memory cannot be managed. The child cannot go on then, because its swapped-out pages would read as zeros.
fn activate_child(
    e: &'static Engine,
    proc: &'static Proc,
    pending: &PendingEvents,
) -> Result<Option<PagerParts>, StartError> {
    let mut begun = Beginning::Parts(open(e, proc)?);
    let mut buffer = vec![0u8; 32 * 1024];
    let (mut mapped, mut stack) = (PageRanges::new(), None);
    // By threads that there are none of here.
    e.memory.guarding.store(0, SeqCst);
    let read = |e: Errno| StartError::Proc("read /proc/self/maps", e.into());
    let maps = proc.file("thread-self/maps").map_err(read)?;
    mappings(&maps, &mut buffer, |m, _| {
        if m.adoptable() {
            mapped.insert(Vpn::of(m.start), Vpn::of(m.end));
            stack = if m.kind == Kind::Stack { Some(m) } else { stack };
        }
    })
    .map_err(read)?;
    if pending.overflowed() {
        return Err(StartError::TooManyChanges);
    }
    // Pages that were placed before the copy, in the address space as it is now.
    let (mut log, mut late_fills) = (e.fork.late_fills.entries(), Vec::new());
    for event in pending.events() {
        while let Some(Some(vpn)) = log.next() {
            late_fills.push(vpn);
        }
        match event {
            // Whether the copy was made before or after: what another thread unmaps during a fork, the child cannot
            // count on; and what another thread mapped there since is not ours. The same for what it discards.
            Message::Unmap { .. } | Message::Remove { .. } => begun = begun.apply(e, proc, event)?,
            Message::Remap { from, to, len } if mapped.contains(Vpn::of(to)) => {
                let (first, last, there) = (Vpn::of(from), Vpn::of(from + len), Vpn::of(to));
                let moved = late_fills.iter_mut().filter(|vpn| (first..last).contains(vpn));
                moved.for_each(|vpn| *vpn = there + (*vpn - first));
                begun = begun.apply(e, proc, event)?;
            }
            _ => {}
        }
    }
    late_fills.extend(log.flatten());
    late_fills.sort_unstable();
    let mut gone = Vec::new();
    if e.memory.has_wipeonfork.load(SeqCst) {
        let smaps = proc.file("thread-self/smaps").map_err(read)?;
        wiped_mappings(&smaps, &mut buffer, |start, end| gone.push((start, end))).map_err(read)?;
    }
    let managed = lock(&e.memory.managed).clone();
    let gaps = managed.iter().flat_map(|(start, end)| mapped.gaps(start, end));
    gone.extend(gaps.map(|(s, t)| (s.addr(), t.addr())));
    for (start, end) in gone {
        begun = begun.apply(e, proc, Message::Unmap { start, end })?;
    }
    for (s, t) in managed.iter().flat_map(|(start, end)| mapped.overlaps(start, end)) {
        let (mut from, mut to) = (s.addr(), t.addr());
        if let Some(stack) = stack.filter(|stack| from < stack.end && stack.start < to) {
            (from, to) = (from.min(stack.start), to.max(stack.end)); // one mapping, as when it was adopted
        }
        begun.mm().register(from, to - from).map_err(StartError::Inherited)?;
    }
    check_untouched(e, begun.mm(), &late_fills)?;
    match begun {
        Beginning::Parts(parts) if parts.may_wait(e) => Ok(Some(parts)),
        begun => run_pager(e, begun.pager(e, proc)?).map(|()| None),
    }
}

/// Between the fork and this moment the child's memory was not registered. If something touched a page that is
/// swapped out, it saw zeros; better to end the child than to let it go on with them. Where all pages were in the
/// program there is nothing to be seen. (`late_fills`: pages, sorted, that were placed during the pause with the right
/// content.)
fn check_untouched(e: &Engine, mm: &dyn AddressSpace, late_fills: &[Vpn]) -> Result<(), StartError> {
    let stack = e.fork.child_stack();
    let dead = Vpn::of(stack - DEAD_STACK)..Vpn::of(stack);
    let managed = lock(&e.memory.managed).clone();
    for (start, end) in managed.iter().flat_map(|(start, end)| e.table.out_parts(start, end)) {
        let mut touched = None;
        let seen = mm.runs_by_kind(start.addr(), end.addr(), &mut |s, t, kind| {
            if kind == PageKind::Guard {
                e.memory.marked.store(true, SeqCst);
                return true;
            }
            for vpn in Vpn::of(s).up_to(Vpn::of(t)) {
                let Some(node) = e.table.node_or_create(vpn) else { return false };
                match e.table.state(node) {
                    State::Mapped(_) => {}
                    // Below the stack pointer of the forking thread everything is dead.
                    state @ (State::Swapped(_) | State::Cached(_))
                        if !dead.contains(&vpn) && late_fills.binary_search(&vpn).is_err() =>
                    {
                        touched = Some((vpn, state))
                    }
                    state @ State::Writeback(_) => touched = Some((vpn, state)),
                    _ => found_present(e, vpn),
                }
            }
            true
        });
        seen.map_err(|e| StartError::Scan(e.into()))?;
        if let Some((vpn, state)) = touched {
            return Err(StartError::Touched { at: vpn.addr(), state, stack });
        }
    }
    Ok(())
}

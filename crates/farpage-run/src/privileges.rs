//! The engine's threads hold what the program's main thread holds: user, groups, capabilities, namespaces, root
//! directory.
//!
//! Why no more: a program that has given root up and is then taken over, taken over are these threads, too; code that
//! can write the process's memory can send them anywhere. Why no less: a thread that holds less than the program may be
//! traced by who may not trace the program, and has its memory.
//!
//! Most of it belongs to threads, and libc does not know of these. So when the program has changed something through
//! libc, its thread says so and waits ([`Engine::follow`]); the monitor reads what the main thread holds, and each
//! engine thread takes that on when it comes to it ([`Engine::keep_up`]). What the program changed by a system call of
//! its own the monitor finds when it looks. A program's seccomp filter is not for engine threads: they have one of
//! their own ([`farpage_base::sys::seccomp`]).
//!
//! In a forked child the threads are made by the program's, and hold what that holds, its filter included. Those that
//! stand by for a fork ([`crate::fork::reserve`]) are made anew. Between a fork's reservation and its copy
//! handlers of the program's run, which may wait for a thread that waits here: so monitor and writer follow at their
//! gates, too, until the copy is near.
//!
//! ```text
//! program's thread          monitor                       pager, writer, helpers
//! asked += 1, rings  -----> reads the main thread's
//! waits                     published += 1, rings ------> take it on, one after the other
//!       <------------------ done[0] = asked   <---------- done[i] = published
//! ```

mod places;

use crate::privileges::places::Change;
use crate::shared::following::{NO_BITS, WAIT_NS};
use crate::shared::stacks::{MONITOR, STACKS};
use crate::shared::state::Engine;
use farpage_base::sys::futex;
use farpage_base::sys::message::fatal_fmt;
use farpage_base::sys::privilege::Privileges;
use farpage_base::sys::proc::Proc;
use farpage_base::sys::raw::{ErrnoText, gettid};
use farpage_base::sys::thread::{block_signals, restore_signals};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

/// Between two looks of the monitor at what the main thread holds.
const LOOK: Duration = Duration::from_millis(250);

impl Engine {
    /// The calling program thread has changed what the program's threads hold. Returns when no engine thread holds
    /// anything else. Async-signal-safe.
    pub fn follow(&self) {
        // The child of a vfork changes what it holds itself.
        if !self.fork.is_home() {
            return;
        }
        let following = &self.following;
        let mask = block_signals();
        following.asking.lock();
        following.caller.store(gettid(), SeqCst);
        let number = following.asked.fetch_add(1, SeqCst).wrapping_add(1);
        self.ring_monitor();
        (0..STACKS).for_each(|index| following.wait(index, number));
        following.asking.unlock();
        restore_signals(mask);
    }

    /// The calling program thread is about to install a seccomp filter for itself: the engine's threads have theirs
    /// when this returns. (Before: what the program's filter allows afterwards is not known.) Async-signal-safe.
    pub fn confine(&self) {
        if self.fork.is_home() {
            self.following.filtered.store(true, SeqCst);
            self.follow();
        }
    }

    /// Engine threads that there are, but those that stand by for a fork.
    pub fn threads(&self) -> usize {
        self.following.done.iter().filter(|done| done.load(SeqCst) != 0).count()
    }

    /// The calling program thread is about to install a seccomp filter for all threads, which would end engine threads,
    /// and so the process. While memory is not managed the engine can do without: its threads have ended when this
    /// returns, and the program goes on without a budget. Async-signal-safe.
    pub fn retire(&self) {
        if !self.fork.is_home() || self.is_active() {
            return;
        }
        self.stage.retired.store(true, SeqCst);
        self.ring_monitor();
        for done in &self.following.done {
            loop {
                match done.load(SeqCst) {
                    0 => break,
                    _ if self.is_active() => return,
                    now => futex::wait(done, now, Some(WAIT_NS)),
                }
            }
        }
        // It has said so a little before its end.
        while self.fork.monitor_is_there() {
            futex::wait(&self.wakeups.never, 0, Some(50_000));
        }
    }

    /// The program has set its secure bits, which no file shows. Async-signal-safe.
    pub fn follow_securebits(&self, bits: u32) {
        if self.fork.is_home() {
            self.following.securebits.store(bits.into(), SeqCst);
            self.follow();
        }
    }

    /// Monitor, at its gate: a fork has been begun, but the copy need not be near. Handlers of the program's may wait
    /// for the thread that waits for us.
    pub(crate) fn oversee_at_gate(&self, proc: &Proc) {
        let following = &self.following;
        let is_asked = || following.asked.load(SeqCst) != following.published.load(SeqCst);
        if is_asked() && self.fork.oversight.try_lock() {
            self.oversee_privileges(proc);
            self.fork.oversight.unlock();
        }
    }

    /// Monitor, behind its gate or as above: looks what the main thread holds if it was asked to, or has not for a
    /// while.
    pub(crate) fn oversee_privileges(&self, proc: &Proc) {
        let following = &self.following;
        let (now, before) = (following.epoch.elapsed().as_millis() as u64, following.looked.load(SeqCst));
        let asked = following.asked.load(SeqCst);
        let is_asked = asked != following.published.load(SeqCst);
        if !is_asked && now - before < LOOK.as_millis() as u64 {
            return;
        }
        following.looked.store(now, SeqCst);
        let change = self.read_model(proc, is_asked);
        let number = match (is_asked, change) {
            (true, _) => asked,
            (false, Change::None) => return,
            (false, _) => following.asked.fetch_add(1, SeqCst).wrapping_add(1),
        };
        let places = places::before(self, proc, change);
        following.published.store(number, SeqCst);
        // Made by a thread that held something else then.
        self.fork.standby.dismiss_now();
        self.keep_up_and(MONITOR, || places::leave(self, proc, places));
        self.fork.gates.ring();
        self.wake_writer();
        self.kick_pager();
    }

    /// Reads what the main thread holds, and what of it the engine's threads do not hold yet.
    fn read_model(&self, proc: &Proc, is_asked: bool) -> Change {
        let following = &self.following;
        // Without an answer (the main thread has ended, and the monitor was not asked) things stay as they are.
        let caller = Some(following.caller.load(SeqCst)).filter(|_| is_asked);
        let Ok(mut privileges) = Privileges::of(proc, caller) else { return Change::None };
        let bits = following.securebits.load(SeqCst);
        privileges.securebits = (bits != NO_BITS).then_some(bits as u32);
        if following.filtered.load(SeqCst) {
            privileges.set_filtered();
        }
        let mut model = following.model.lock();
        // The first look: mostly what every thread was started with.
        let before = model.take().or_else(|| Privileges::of_caller(proc).ok());
        let change = match before {
            Some(before) if before.are_those_of(&privileges) => Change::None,
            Some(before) if before.are_at_the_place_of(&privileges) => Change::Rights,
            _ => Change::Place,
        };
        *model = Some(privileges);
        change
    }

    /// Whether engine thread `index` has something to take on.
    pub(crate) fn is_behind(&self, index: usize) -> bool {
        self.following.done[index].load(Relaxed) != self.following.published.load(Relaxed)
    }

    /// Engine thread `index`: takes on what was published since it last did. Allocates nothing.
    pub(crate) fn keep_up(&self, index: usize) {
        self.keep_up_and(index, || ());
    }

    /// The same, and what else is to be done before the program goes on.
    fn keep_up_and(&self, index: usize, and: impl FnOnce()) {
        let following = &self.following;
        let published = following.published.load(SeqCst);
        if following.done[index].load(SeqCst) == published {
            return;
        }
        if let Some(model) = &*following.model.lock()
            && let Err(error) = Proc::held().and_then(|proc| model.take_on(proc))
        {
            fatal_fmt(format_args!(
                "the program has given up privileges that an engine thread cannot give up: {}",
                ErrnoText(error)
            ));
        }
        and();
        following.done[index].store(published, SeqCst);
        futex::wake_all(&following.done[index]);
    }
}

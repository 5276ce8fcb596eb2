//! `farpage attach`: a budget for a program that runs already.
//!
//! A thread of the program is borrowed for some milliseconds to load the library ([`tracee`]), at a place where it
//! holds no lock that this needs ([`place`]); the others run on. The library does the rest
//! (`farpage-preload/src/late`): the engine starts, and takes over what the program has.
//!
//! | module | what |
//! | --- | --- |
//! | [`start`] | loads the library into a process, and starts its engine |
//! | [`target`] | which processes can be attached to, and why not |
//! | [`place`] | which thread, and where |
//! | [`tracee`], [`stops`] | the thread: calls for us, and is put back; `ptrace` |
//! | [`filter`] | whether its seccomp filter lets an engine work |
//! | [`userfaultfds`] | makes those of a process whose user may not have any |
//! | [`pass`] | gives the process what it may not, or cannot, open |
//! | [`memory`], [`symbols`] | its memory and mappings; addresses of functions |
//! | [`family`] | what it has started before |

mod family;
mod filter;
mod memory;
mod pass;
mod place;
pub mod start;
mod stops;
mod symbols;
mod target;
mod tracee;
mod userfaultfds;

use crate::args::AttachArgs;
use crate::budget::budget;
use crate::failure::{Result, say};
use crate::{preload, run, set};
use farpage::PAGE_SIZE;
use farpage_ipc::conf::size;
use start::Start;
use std::process::ExitCode;
use std::time::Instant;
use target::Target;

/// Runs the subcommand.
///
/// # Errors
/// It cannot be attached to, with exit status 1; then it is as it was.
pub fn main(args: &AttachArgs) -> Result<ExitCode> {
    let note = |text: &dyn std::fmt::Display| {
        if args.verbose {
            say(format_args!("farpage: {text}"));
        }
    };
    let bytes = budget(Some(&args.ram))?.bytes;
    let (conf, text) = run::configuration_of_running(bytes, &args.engine)?;
    let start = Start::new(preload::find()?, text, &note);
    let target = if args.tree { Target::look_at_member(args.pid)? } else { Target::look(args.pid)? };
    let since = Instant::now();
    if target.library().is_some() {
        set::give(args.pid, &args.ram)?.1.into_iter().for_each(say);
    } else {
        start.begin(&target, None)?;
    }
    match args.tree {
        true => family::take_in(&target, &start)?,
        false => family::warn_of_those_outside(&target, conf.ram),
    }
    let is_within = set::wait_until_within(args.pid, conf.ram / PAGE_SIZE as u64)?;
    if is_within {
        note(&format_args!("within {} after {:.2} s", size::format(conf.ram), since.elapsed().as_secs_f64()));
    }
    Ok(if is_within { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

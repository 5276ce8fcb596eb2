//! `farpage set`: another budget for a tree that runs.

use crate::args::SetArgs;
use crate::budget::budget;
use crate::failure::{Failure, Result, say};
use crate::trees;
use farpage::PAGE_SIZE;
use farpage::internals::conf::size;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long a tree that shrinks is waited for while it makes no headway.
const PATIENCE: Duration = Duration::from_secs(5);

/// Runs the subcommand. Exit status 1: no such tree, or it cannot become as small.
///
/// # Errors
/// As said; an unreadable size.
pub fn main(args: &SetArgs) -> Result<ExitCode> {
    let bytes = budget(Some(&args.ram))?.bytes;
    let tree = trees::of(args.pid)?;
    let (segment, pages) = (tree.segment, bytes / PAGE_SIZE as u64);
    segment.set_budget(bytes);
    let (mut least, mut since) = (u64::MAX, Instant::now());
    loop {
        let claimed = segment.claimed();
        if claimed <= pages {
            return Ok(ExitCode::SUCCESS);
        }
        if claimed < least {
            (least, since) = (claimed, Instant::now());
        } else if since.elapsed() > PATIENCE {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let has = size::format(least * PAGE_SIZE as u64);
    say(Failure::with_status(
        1,
        format!("the tree of process {} has {has}, and does not become smaller: {}", args.pid, tree.floors()),
    )
    .help("the budget is set; what cannot be swapped out stands in the way"));
    Ok(ExitCode::from(1))
}

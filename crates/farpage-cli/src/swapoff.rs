//! `farpage swapoff redis://...`: removes what programs that are gone have left on a server.
//!
//! A program that runs is heard of at the server every few seconds. One that has not been heard of for a minute has
//! ended, or has been stopped: of a program that may go on, nothing should be removed, so this is done by hand only.

use crate::args::SwapoffArgs;
use crate::failure::{Failure, Result, say};
use farpage::{DeviceKind, SwapSpec};
use farpage_device::DeviceError;
use farpage_server::redis::server::{Server, resolve};
use farpage_server::redis::sweep::{remove, sessions};
use std::process::ExitCode;

/// Runs the subcommand. Exit status 1: something could not be removed.
///
/// # Errors
/// No such server, or it will not do.
pub fn main(args: &SwapoffArgs) -> Result<ExitCode> {
    let spec = SwapSpec::parse(&args.server).map_err(|error| Failure::new(error.to_string()))?;
    let DeviceKind::Redis(spec) = spec.kind else {
        let sentence = format!("{}: only a Redis server keeps what programs leave behind", args.server);
        return Err(Failure::new(sentence).help("write redis://HOST"));
    };
    // Whatever it does with pages: these go.
    let refused =
        |error: DeviceError| Failure::new(format!("cannot use {}: {}", error.name, error.reason)).help(error.remedy);
    let (spec, server, ()) = resolve(&spec, None, Server::connect).map_err(refused)?;
    let failed = |error| refused(server.asking_failed("HGETALL", error));
    let mut is_clean = true;
    let known = sessions(&server).map_err(failed)?;
    for session in &known {
        // Host and process.
        let owner = session.owner.split(' ').take(2).collect::<Vec<_>>().join(" ");
        if session.alive {
            println!("kept     {owner}: it runs");
        } else if args.dry_run {
            println!("would remove the pages of {owner}");
        } else if let Some(pages) = remove(&server, &session.id, session.end) {
            println!("removed  {owner}: {pages} pages");
        } else {
            is_clean = false;
            say(format_args!("farpage: {}: not all pages of {owner} could be removed", spec.name()));
        }
    }
    if known.is_empty() {
        println!("nothing is left there");
    }
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

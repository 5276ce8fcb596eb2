//! `farpage doctor --swap SPEC`: whether a swap device can be used, and how fast it is, before anything depends on it.

use crate::failure::{Failure, Result};
use crate::run::server;
use farpage::{DeviceKind, PAGE_SIZE, SwapSpec};
use farpage_codec::page_hash::ContentKey;
use farpage_device::{Entry, SwapSpace};
use farpage_ipc::conf::nbd::NbdSpec;
use farpage_ipc::conf::size;
use std::time::{Duration, Instant};

/// Pages that are stored, and those that are read one by one.
const PAGES: usize = 2048;
const SINGLE: usize = 512;
/// Pages that are read or written together.
const WINDOW: usize = 32;

/// Looks at a device, and says what it is like.
///
/// # Errors
/// It cannot be used.
pub fn look(text: &str) -> Result<()> {
    let mut specs = [SwapSpec::parse(text).map_err(|error| Failure::new(format!("--swap: {error}")))?];
    if specs[0].is_memory() {
        println!("{text}: memory of the program itself, within the budget: it works wherever farpage does");
        return Ok(());
    }
    let password = server::resolve_all(&mut specs)?;
    if let DeviceKind::Redis(spec) = &specs[0].kind {
        let (_, _, memory) = server::open(spec, password.as_deref())?;
        let or_not = |bytes: Option<u64>| bytes.map_or_else(|| String::from("?"), size::format);
        let policy = memory.policy.unwrap_or_else(|| String::from("unknown"));
        println!(
            "{text}: maxmemory {}, of which {} are taken; maxmemory-policy {policy}",
            or_not(memory.most),
            or_not(memory.used)
        );
        if password.is_some() {
            return Ok(()); // It can be read once.
        }
    }
    if let DeviceKind::Nbd(spec) = &mut specs[0].kind {
        look_at_export(text, spec)?;
    }
    // SAFETY: there is no device in memory.
    let space = unsafe { SwapSpace::build(&specs, std::ptr::null_mut(), 0, 0) }.map_err(server::failure)?;
    let key = ContentKey::random();
    space.check_contents(key);
    let frames: Vec<Frame> = (0..PAGES).map(Frame::of).collect();
    let mut entries: Vec<Entry> = Vec::new();
    let begun = Instant::now();
    for frames in frames.chunks(WINDOW) {
        let pages: Vec<_> = frames.iter().map(|frame| (&frame.0, key.hash(&frame.0))).collect();
        let mut out = [None; WINDOW];
        space.store_batch(&pages, &mut out).map_err(|error| failed(text, "a page could not be stored", &error))?;
        entries.extend(out.into_iter().flatten());
    }
    let stored = begun.elapsed() / PAGES as u32;
    let mut back: Vec<Frame> = (0..WINDOW).map(|_| Frame([0; PAGE_SIZE])).collect();
    let mut times = Vec::new();
    for entry in entries.iter().step_by(PAGES / SINGLE) {
        let begun = Instant::now();
        space.load(*entry, &mut back[0].0).map_err(|error| failed(text, "a page could not be read", &error))?;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    let begun = Instant::now();
    for entries in entries.chunks(WINDOW) {
        let mut into: Vec<_> = back.iter_mut().map(|frame| &mut frame.0).collect();
        if let (_, Some(error)) = space.load_many(entries, &mut into) {
            return Err(failed(text, "a page could not be read", &error));
        }
    }
    let read = begun.elapsed() / PAGES as u32;
    entries.iter().for_each(|entry| _ = space.free(*entry));
    let us = |time: Duration| time.as_nanos() as f64 / 1000.0;
    let (p50, p99) = (times[times.len() / 2], times[times.len() * 99 / 100]);
    println!("{text}: one page read in {:.1} us (p50), {:.1} us (p99)", us(p50), us(p99));
    println!("{text}: {WINDOW} pages together: {:.1} us a page read, {:.1} us stored", us(read), us(stored));
    Ok(())
}

/// What its server says of it.
fn look_at_export(text: &str, spec: &mut NbdSpec) -> Result<()> {
    let export = server::take(spec)?;
    let info = export.info();
    // The first connection was given up for the program's own.
    let many = match (export.read(0, &mut [0; PAGE_SIZE]).is_ok() && export.allows_another(), info.many()) {
        (false, _) => "allows one connection: forked children lose what was stored before, and regions are refused",
        (true, false) => "allows several connections, but does not promise that all see the same",
        (true, true) => "allows several connections",
    };
    let trims = if info.trims() { "takes space back" } else { "does not take space back" };
    println!("{text}: {}; {many}; {trims}", size::format(info.size));
    export.empty();
    spec.id = None;
    Ok(())
}

fn failed(text: &str, what: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(format!("--swap {text}: {what}: {error}"))
}

#[repr(align(4096))]
struct Frame([u8; PAGE_SIZE]);

impl Frame {
    /// Half of it compresses.
    fn of(number: usize) -> Frame {
        let mut state = number as u64 + 1;
        let mut page = [0; PAGE_SIZE];
        for word in page[..PAGE_SIZE / 2].chunks_exact_mut(8) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            word.copy_from_slice(&state.to_ne_bytes());
        }
        Frame(page)
    }
}

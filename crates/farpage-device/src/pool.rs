//! Compressed objects in memory: size classes over 32 KiB spans.
//!
//! The pool owns a region of address space (given to it; demand-zero, nothing touched) and cuts it into *spans* of
//! 32 KiB. A span belongs to one size class while objects of it are in use; the classes are chosen so that a span is
//! filled without a rest. An allocation takes the fullest span of its class that has room, so that sparse spans
//! drain; an empty span is kept for any class (a few of them) or given back to the kernel.
//!
//! ```text
//!   untouched --alloc--> class span (partial <-> full) --last object freed--> empty --over the cache--> releasing
//!       ^                        ^------------------alloc------------------------'                          |
//!       '----------------------------------- MADV_DONTNEED, then `released` --------------------------------'
//! ```
//!
//! Caller: `zram`, which keeps the pool under its lock. Two things happen outside that lock: writing an object that
//! was just allocated and that no other thread knows yet ([`Pool::object`]), and returning a span's memory to the
//! kernel ([`Pool::take_excess`], [`Release::run`], [`Pool::released`]). The pool itself does not lock.

use farpage_base::mem::open::Opening;
use rustix::mm::{Advice, madvise};
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::ptr::NonNull;

/// Bytes of a span.
pub const SPAN_BYTES: usize = 32 << 10;
/// Largest object, bytes: a page stored as it is.
pub const OBJECT_MAX: usize = 4096;
/// A page that compresses to more than this is not worth keeping compressed: nine objects of this size fill a span of
/// eight pages, the next class has only eight. (The kernel's rule; its zsmalloc has chains of eight pages too by
/// default, and comes to 3625.)
pub const COMPRESSED_MAX: usize = 3632;
/// Empty spans kept for the next allocation.
const EMPTY_KEEP: usize = 4;
/// Most objects of a span; the smallest class is 64 bytes.
const OBJECTS_MAX: usize = SPAN_BYTES / 64;
const OBJECT_BITS: u32 = OBJECTS_MAX.trailing_zeros();
/// Fullness groups of a class; spans without room are on no list.
const GROUPS: usize = 8;
const NIL: u32 = u32::MAX;
const CACHE_LINE: usize = 64;

/// Size classes: for each number of objects per span, the largest size (multiple of 16 bytes) that many of fit;
/// numbers whose sizes are less than 64 bytes apart share the larger one.
struct Classes {
    size: [u16; 64],
    count: usize,
    /// Class of an object of `(len + 15) / 16` units.
    of: [u8; OBJECT_MAX / 16 + 1],
}

const CLASSES: Classes = classes();

const fn classes() -> Classes {
    let mut c = Classes { size: [0; 64], count: 0, of: [0; OBJECT_MAX / 16 + 1] };
    // From the smallest object (most per span) to the largest.
    let mut objects = OBJECTS_MAX;
    while objects >= SPAN_BYTES / OBJECT_MAX {
        let size = SPAN_BYTES / objects / 16 * 16;
        let last = if c.count == 0 { 0 } else { c.size[c.count - 1] as usize };
        if size >= last + 64 {
            c.size[c.count] = size as u16;
            c.count += 1;
        }
        objects -= 1;
    }
    let mut unit = 0;
    let mut class = 0;
    while unit <= OBJECT_MAX / 16 {
        while (c.size[class] as usize) < unit * 16 {
            class += 1;
        }
        c.of[unit] = class as u8;
        unit += 1;
    }
    c
}

const _: () = assert!(CLASSES.size[CLASSES.count - 1] as usize == OBJECT_MAX);

/// An object: span number and place in it. Meaningless after it was freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle(u32);

impl Handle {
    /// As a number, to be kept in a table.
    pub fn raw(self) -> u32 {
        self.0
    }

    /// From [`Handle::raw`]. A number that never was a handle is harmless: the pool answers `None`.
    pub fn from_raw(raw: u32) -> Handle {
        Handle(raw)
    }

    fn span(self) -> u32 {
        self.0 >> OBJECT_BITS
    }

    fn place(self) -> usize {
        self.0 as usize & (OBJECTS_MAX - 1)
    }
}

/// A span whose memory is to be given back to the kernel, outside of the lock.
#[must_use = "the span is lost until Pool::released is called"]
pub struct Release {
    span: u32,
    base: NonNull<u8>,
    advice: Advice,
}

impl Release {
    /// Gives the memory back.
    pub fn run(&self) {
        // SAFETY: the span lies in the region that the pool owns, holds no object (so no reference into it exists), and
        // is on no list, so nothing is allocated in it until `Pool::released`. A failure leaves the memory as it is.
        let _ = unsafe { madvise(self.base.as_ptr().cast(), SPAN_BYTES, self.advice) };
    }
}

struct Span {
    prev: u32,
    next: u32,
    used: u16,
    class: u8,
    /// Fullness group whose list it is on; `GROUPS`: on none (full, empty, untouched or releasing).
    group: u8,
    /// One bit per object in use.
    map: [u64; OBJECTS_MAX / 64],
}

/// The store. Not thread-safe by itself.
pub struct Pool {
    base: NonNull<u8>,
    /// What gives memory of it back.
    advice: Advice,
    opening: Opening,
    spans_max: u32,
    spans: Vec<Span>,
    /// First span of each class and fullness group.
    heads: [[u32; GROUPS]; CLASSES.count],
    /// Touched spans without objects.
    empty: Vec<u32>,
    /// Spans given back to the kernel.
    untouched: Vec<u32>,
    resident_spans: usize,
    /// Most there have been.
    peak_spans: usize,
    object_bytes: u64,
    limit: u64,
}

// SAFETY: the pool owns its region (contract of `new`); nothing in it belongs to a thread.
unsafe impl Send for Pool {}

/// Where the objects of a pool are, for those that do not hold its lock.
#[derive(Debug, Clone, Copy)]
pub struct Objects {
    base: usize,
}

impl Objects {
    /// Begins to fetch an object of `len` bytes into the CPU's cache, so that its copy is not waited for under the
    /// lock. Only a hint: the object may have moved by then.
    pub fn fetch(self, handle: Handle, len: usize) {
        let start = self.guess(handle, len);
        for line in (start..start + len).step_by(CACHE_LINE) {
            // SAFETY: the instruction reads nothing, and does nothing where nothing is mapped.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line as *const i8) };
        }
    }

    /// Its address, unless it fills a hole of a larger class.
    fn guess(self, handle: Handle, len: usize) -> usize {
        self.base + handle.span() as usize * SPAN_BYTES + handle.place() * Pool::size_of(len)
    }
}

impl Pool {
    /// For loads.
    pub fn objects(&self) -> Objects {
        Objects { base: self.base.as_ptr() as usize }
    }

    /// A pool over `len` bytes at `base`. Whole spans are used, at most 2^23 of them (256 GiB).
    /// `limit`: most bytes of memory it may hold ([`Pool::resident_bytes`]).
    ///
    /// # Safety
    /// `base..base+len` is a reservation of private anonymous memory, zero or initialised, aligned to a page (the pool
    /// opens it: [`Opening`]), that nothing else uses for as long as the pool exists.
    pub unsafe fn new(base: NonNull<u8>, len: usize, limit: u64) -> Pool {
        let spans_max = (len / SPAN_BYTES).min(1 << (32 - OBJECT_BITS)) as u32;
        let at = base.as_ptr() as usize;
        // SAFETY: caller's promise.
        let opening = unsafe { Opening::new(at, at + len) }.giving_way();
        Pool {
            base,
            advice: Advice::LinuxDontNeed,
            opening,
            spans_max,
            spans: Vec::new(),
            heads: [[NIL; GROUPS]; CLASSES.count],
            empty: Vec::new(),
            untouched: Vec::new(),
            resident_spans: 0,
            peak_spans: 0,
            object_bytes: 0,
            limit,
        }
    }

    /// The same over a part of a file in memory (`memfd`), whose owner maps what it writes to.
    ///
    /// # Safety
    /// As [`Pool::new`], but for the kind of memory.
    pub unsafe fn on_file(base: NonNull<u8>, len: usize) -> Pool {
        let at = base.as_ptr() as usize;
        // SAFETY: caller's promise.
        let pool = unsafe { Pool::new(base, len, len as u64) };
        Pool { advice: Advice::LinuxRemove, opening: Opening::opened(at, at + len), ..pool }
    }

    /// Changes the limit, bytes. A pool above a new limit takes nothing more until enough was freed.
    pub fn set_limit(&mut self, bytes: u64) {
        self.limit = bytes;
    }

    /// The limit, bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes of touched spans: an upper bound of the memory the pool holds.
    pub fn resident_bytes(&self) -> u64 {
        (self.resident_spans * SPAN_BYTES) as u64
    }

    /// The most that [`Pool::resident_bytes`] has been.
    pub fn peak_bytes(&self) -> u64 {
        (self.peak_spans * SPAN_BYTES) as u64
    }

    /// Bytes that an object of `len` bytes (4096 at most) takes, more or less.
    pub fn size_of(len: usize) -> usize {
        CLASSES.of.get(len.div_ceil(16)).map_or(OBJECT_MAX, |&class| class_size(class))
    }

    /// Bytes of objects in use, each rounded up to its class.
    #[cfg(test)]
    pub fn object_bytes(&self) -> u64 {
        self.object_bytes
    }

    /// Bytes of bookkeeping outside of the region.
    pub fn meta_bytes(&self) -> usize {
        self.spans.capacity() * size_of::<Span>() + (self.empty.capacity() + self.untouched.capacity()) * 4
    }

    /// Room for an object of `len` bytes (1 to 4096). `None`: the limit or the end of the region is reached.
    pub fn alloc(&mut self, len: usize) -> Option<Handle> {
        let class = usize::from(*CLASSES.of.get(len.div_ceil(16))?);
        let span = match self.partial(class) {
            Some(span) => span,
            None => match self.new_span(class) {
                Some(span) => span,
                // No room for another span: a hole of a larger class is better than nothing.
                None => (class + 1..CLASSES.count).find_map(|c| self.partial(c))?,
            },
        };
        self.take_object(span)
    }

    /// Frees an object. `false`: the handle is not in use (a bug of the caller), nothing changed.
    pub fn free(&mut self, handle: Handle) -> bool {
        let Some((span, at, size)) = self.locate(handle) else { return false };
        let record = &mut self.spans[span as usize];
        record.map[at / 64] &= !(1 << (at % 64));
        record.used -= 1;
        let empty = record.used == 0;
        self.object_bytes -= size as u64;
        if empty {
            self.unlink(span);
            self.empty.push(span);
        } else {
            self.regroup(span);
        }
        true
    }

    /// Moves an object out of a sparse span into a fuller one of the same class, so that the sparse one drains.
    /// The new handle; the old one is no longer valid then. `None`: it stays, there is nothing to gain.
    pub fn relocate(&mut self, handle: Handle) -> Option<Handle> {
        let (span, at, size) = self.locate(handle)?;
        let record = &self.spans[span as usize];
        let target = self.partial(usize::from(record.class))?;
        let target_record = &self.spans[target as usize];
        // Or as full: then one of the two is fuller afterwards, so no object goes back and forth.
        let fuller = target_record.used >= record.used;
        // Spans that are nearly full stay as they are: emptying one costs more than its holes.
        if target == span || usize::from(record.used) * 8 > SPAN_BYTES / size * 7 || !fuller {
            return None;
        }
        let new = self.take_object(target)?;
        let to = self.object(new, size)?;
        // SAFETY: both are whole objects of `size` bytes in use, in different spans of the region, so they do not
        // overlap; `&mut self` excludes every other access to known objects, and `new` is not known yet.
        unsafe { std::ptr::copy_nonoverlapping(self.span_base(span).add(at * size).as_ptr(), to.as_ptr(), size) };
        self.free(handle);
        Some(new)
    }

    /// Whether more than a quarter of the memory is holes.
    pub fn is_fragmented(&self) -> bool {
        self.holes() > self.in_spans() / 4
    }

    /// Whether more than a sixteenth of the memory is holes: worth [`Pool::relocate`].
    pub fn is_loose(&self) -> bool {
        self.holes() > self.in_spans() / 16
    }

    /// Bytes of spans with objects.
    fn in_spans(&self) -> u64 {
        self.resident_bytes().saturating_sub((self.empty.len() * SPAN_BYTES) as u64)
    }

    fn holes(&self) -> u64 {
        self.in_spans().saturating_sub(self.object_bytes)
    }

    /// Where an object lies; it may be read by the thread that holds the lock, and written only between [`Pool::alloc`]
    /// and the moment the handle becomes known to others. `None`: not in use, or shorter than `len` bytes.
    pub fn object(&self, handle: Handle, len: usize) -> Option<NonNull<u8>> {
        let (span, at, size) = self.locate(handle)?;
        // SAFETY: `locate` found the object in use, so span < spans_max and at * size + size <= SPAN_BYTES: inside the
        // region.
        (len <= size).then(|| unsafe { self.span_base(span).add(at * size) })
    }

    /// The first `len` bytes of an object whose handle is known (so that it is not written any more).
    pub fn bytes(&self, handle: Handle, len: usize) -> Option<&[u8]> {
        let object = self.object(handle, len)?;
        // SAFETY: `len` bytes from `object` lie in one object of the region, which is initialised memory. Objects
        // are written only before their handle is known, and the borrow of `self` keeps it from being freed.
        Some(unsafe { std::slice::from_raw_parts(object.as_ptr(), len) })
    }

    /// An empty span more than is worth keeping. The caller runs it outside of its lock and then calls
    /// [`Pool::released`].
    pub fn take_excess(&mut self) -> Option<Release> {
        let keep = if self.resident_bytes() > self.limit { 0 } else { EMPTY_KEEP };
        if self.empty.len() > keep { self.take_empty() } else { None }
    }

    /// The same for any empty span.
    pub fn take_empty(&mut self) -> Option<Release> {
        let span = self.empty.pop()?;
        Some(Release { span, base: self.span_base(span), advice: self.advice })
    }

    /// Takes back a span whose memory was given to the kernel.
    pub fn released(&mut self, release: Release) {
        self.resident_spans -= 1;
        self.untouched.push(release.span);
    }

    fn span_base(&self, span: u32) -> NonNull<u8> {
        // SAFETY: span < spans_max for every span the pool made, so the sum stays inside the region.
        unsafe { self.base.add(span as usize * SPAN_BYTES) }
    }

    /// (span, place, size of the class) of an object in use.
    fn locate(&self, handle: Handle) -> Option<(u32, usize, usize)> {
        let (span, at) = (handle.span(), handle.place());
        let record = self.spans.get(span as usize)?;
        (record.map[at / 64] >> (at % 64) & 1 == 1).then(|| (span, at, class_size(record.class)))
    }

    /// The fullest span of a class that has room.
    fn partial(&self, class: usize) -> Option<u32> {
        self.heads[class].iter().rev().copied().find(|&head| head != NIL)
    }

    /// An empty span, made one of `class`.
    fn new_span(&mut self, class: usize) -> Option<u32> {
        let span = if let Some(span) = self.empty.pop() {
            span
        } else {
            if self.resident_bytes() + SPAN_BYTES as u64 > self.limit {
                return None;
            }
            let span = match self.untouched.pop() {
                Some(span) => span,
                None => {
                    let span = self.spans.len() as u32;
                    let end = self.base.as_ptr() as usize + (span as usize + 1) * SPAN_BYTES;
                    if span >= self.spans_max || !self.opening.reach(end) {
                        return None;
                    }
                    let map = [0; OBJECTS_MAX / 64];
                    self.spans.push(Span { prev: NIL, next: NIL, used: 0, class: 0, group: GROUPS as u8, map });
                    span
                }
            };
            self.resident_spans += 1;
            self.peak_spans = self.peak_spans.max(self.resident_spans);
            span
        };
        self.spans[span as usize].class = class as u8;
        Some(span)
    }

    fn take_object(&mut self, span: u32) -> Option<Handle> {
        let record = self.spans.get_mut(span as usize)?;
        let size = class_size(record.class);
        let word = record.map.iter().position(|&w| w != u64::MAX)?;
        let at = word * 64 + record.map[word].trailing_ones() as usize;
        if at >= SPAN_BYTES / size {
            return None;
        }
        record.map[word] |= 1 << (at % 64);
        record.used += 1;
        self.object_bytes += size as u64;
        self.regroup(span);
        Some(Handle(span << OBJECT_BITS | at as u32))
    }

    /// Puts a span with objects on the list that its fullness asks for.
    fn regroup(&mut self, span: u32) {
        let record = &self.spans[span as usize];
        let objects = SPAN_BYTES / class_size(record.class);
        let used = usize::from(record.used);
        let group = if used == objects { GROUPS } else { used * GROUPS / objects };
        if group == usize::from(record.group) {
            return;
        }
        self.unlink(span);
        if group == GROUPS {
            return;
        }
        let class = usize::from(self.spans[span as usize].class);
        let head = self.heads[class][group];
        if head != NIL {
            self.spans[head as usize].prev = span;
        }
        let record = &mut self.spans[span as usize];
        record.group = group as u8;
        record.prev = NIL;
        record.next = head;
        self.heads[class][group] = span;
    }

    fn unlink(&mut self, span: u32) {
        let record = &mut self.spans[span as usize];
        let (prev, next, class, group) = (record.prev, record.next, usize::from(record.class), record.group);
        if usize::from(group) == GROUPS {
            return;
        }
        record.group = GROUPS as u8;
        if prev == NIL {
            self.heads[class][usize::from(group)] = next;
        } else {
            self.spans[prev as usize].next = next;
        }
        if next != NIL {
            self.spans[next as usize].prev = prev;
        }
    }
}

fn class_size(class: u8) -> usize {
    usize::from(CLASSES.size[usize::from(class)])
}

#[cfg(test)]
mod tests;

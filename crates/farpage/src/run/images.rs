//! Where the code that runs on engine threads has its data.

use crate::PAGE_SIZE;

/// Zero-initialised data of the libraries whose code runs on engine threads: libc, the dynamic linker, ourselves.
/// These pages are anonymous memory like any other, but a fault on them would be the engine waiting for itself.
pub fn own_images() -> Vec<(usize, usize)> {
    extern "C" fn each(info: *mut libc::dl_phdr_info, _size: usize, out: *mut libc::c_void) -> i32 {
        // SAFETY: libc passes a live record; out is the vector below.
        let (info, out) = unsafe { (&*info, &mut *out.cast::<Vec<(usize, usize)>>()) };
        if info.dlpi_name.is_null() {
            return 0;
        }
        // SAFETY: a C string that lives as long as the record.
        let name = unsafe { std::ffi::CStr::from_ptr(info.dlpi_name) }.to_bytes();
        let here = each as *const () as usize as u64;
        // SAFETY: dlpi_phnum headers at dlpi_phdr.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize) };
        let loads = headers.iter().filter(|h| h.p_type == libc::PT_LOAD);
        let range = |h: &libc::Elf64_Phdr| (info.dlpi_addr + h.p_vaddr, info.dlpi_addr + h.p_vaddr + h.p_memsz);
        let file = name.rsplit(|b| *b == b'/').next().unwrap_or(name);
        let system = [&b"libc.so"[..], b"ld-linux", b"libgcc_s", b"libm.so", b"libpthread"];
        let ours = loads.clone().map(range).any(|(s, e)| (s..e).contains(&here));
        if ours || system.iter().any(|s| file.starts_with(s)) {
            for (start, end) in loads.map(range) {
                let end = (end as usize).next_multiple_of(PAGE_SIZE);
                out.push((start as usize & !(PAGE_SIZE - 1), end));
            }
        }
        0
    }
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    // SAFETY: the callback fits the declared type and the vector outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(each), std::ptr::from_mut(&mut ranges).cast()) };
    ranges
}

//! Where the code that runs on engine threads has its data.

use farpage_swap::PAGE_SIZE;

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

/// Whether the program itself is linked with libc, and so gets its memory from there. One without (Go's without cgo
/// are) makes its system calls itself. Where its dynamic section cannot be found: yes.
pub fn program_needs_libc() -> bool {
    extern "C" fn first(info: *mut libc::dl_phdr_info, _size: usize, out: *mut libc::c_void) -> i32 {
        // SAFETY: libc passes a live record, the program's own first; out is the flag below.
        let (info, needs) = unsafe { (&*info, &mut *out.cast::<bool>()) };
        // SAFETY: dlpi_phnum headers at dlpi_phdr.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize) };
        if let Some(dynamic) = headers.iter().find(|h| h.p_type == libc::PT_DYNAMIC) {
            // SAFETY: pairs of a tag and a value, mapped as long as the program is.
            let entries = unsafe {
                let at = (info.dlpi_addr + dynamic.p_vaddr) as *const [u64; 2];
                std::slice::from_raw_parts(at, dynamic.p_memsz as usize / size_of::<[u64; 2]>())
            };
            *needs = entries.iter().take_while(|entry| entry[0] != DT_NULL).any(|entry| entry[0] == DT_NEEDED);
        }
        1
    }
    let mut needs = true;
    // SAFETY: the callback fits the declared type and the flag outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(first), std::ptr::from_mut(&mut needs).cast()) };
    needs
}

/// Tags of a dynamic section.
const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;

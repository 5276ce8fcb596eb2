"""Other libraries have functions of the names that ours calls: libfaketime, profilers, quicker `memcpy`s; preloaded
before or after ours, or linked. What they do is for threads that libc has made, and the engine's are not."""

import hashlib
import os
import re
import subprocess
import unittest

from situation import BUILT, FARPAGE, PRELOAD, REGIONS, Situation, build, unless_there

# What the preload library asks the dynamic linker for, and why no engine thread comes to it. Everything else it has
# itself: crates/farpage-preload/src/own.
BY_NAME = {
    "at load and unload": "_ITM_deregisterTMCloneTable _ITM_registerTMCloneTable __cxa_finalize __gmon_start__",
    "looked up at load, or in a late start, on program threads": "dlopen dlsym",
    "at start, on the program's thread": "dl_iterate_phdr dladdr getenv",
    "at start, so that the second of two such libraries finds the first": "farpage_preload_started",
    "what a late start came to, for who reads it from outside": "farpage_start_outcome",
    "a thread that starts another": "pthread_attr_getstacksize pthread_attr_init",
    "a thread that starts a program": "environ",
    "a forking thread": "_IO_list_all _IO_list_lock _IO_list_unlock pthread_sigmask sigaddset sigemptyset sigismember sigtimedwait",
    "in a panic, which ends the process": """
        __cxa_thread_atexit_impl __pthread_key_create __tls_get_addr _dl_find_object pthread_key_create
        pthread_key_delete pthread_mutex_lock pthread_mutex_unlock pthread_once pthread_setspecific realpath""",
    "a keeper of regions, which is not started under run": "pthread_detach",
    "a program thread that makes a pager of regions": "__cxa_atexit",
    "what realpath has allocated; zstd, where it was given no allocator": "free",
}

# Functions that the library exports and that its own code may call: each has a plain system call for engine threads
# (`own::on_engine_threads`, or in itself) ...
EXPORTED = "close close_range closefrom fcntl fcntl64 ioctl madvise mmap mmap64 open open64 openat openat64 syscall"
# ... and those that only the command and the library of regions call, or the standard library for a thread of libc's.
FOR_THE_PROGRAM = """_Fork __register_atfork _exit calloc chroot clone dlclose execve execvp fork initgroups malloc
    mprotect
    posix_memalign posix_spawnp prctl pthread_create realloc setgid setgroups setresgid setresuid setuid wait4 waitid
    waitpid"""

SWAPS = ("40", "2", "1")


def names_of(library, kinds):
    """Names without versions that `nm` shows as one of these kinds."""
    out = subprocess.run(["nm", "-D", library], check=True, capture_output=True, text=True).stdout
    found = re.findall(r"^[0-9a-f ]{16} (.) ([^@\s]+)", out, re.M)
    return {name for kind, name in found if kind in kinds}


def functions_to_take():
    """All functions that ours asks for and has, and those that the other programs of this build ask for: what the
    engine and the standard library would call without definitions of their own."""
    needed = subprocess.run(["ldd", FARPAGE], check=True, capture_output=True, text=True).stdout
    functions = set()
    for library in re.findall(r"(/\S+)", needed):
        functions |= names_of(library, "TWi")
    asked = names_of(PRELOAD, "UwT")
    for other in (FARPAGE, REGIONS):
        asked |= names_of(other, "Uw")
    # Calls of this one come with the compiler's own rules about registers.
    return sorted((asked & functions) - {"__tls_get_addr"})


def taking_all():
    """A library that defines them all."""
    text = "".join(f"NAME({name})\n" for name in functions_to_take())
    BUILT.mkdir(parents=True, exist_ok=True)
    stem = "names-" + hashlib.sha256(text.encode()).hexdigest()[:12]
    names = BUILT / f"{stem}.h"
    names.write_text(text)
    return build("names.c", "-shared", "-fPIC", "-fno-builtin", f'-DNAMES="{names}"', "-ldl", output=f"{stem}.so")


class Names(Situation):
    def swapping(self, library, how, linked=()):
        """A program that swaps, with the library before ours, after it, or linked."""
        program = build("swaps.c", output="swaps")
        if how == "linked":
            program = build("swaps.c", "-Wl,--no-as-needed", library, f"-Wl,-rpath,{library.parent}",
                            output=f"swaps-{library.stem}")
        trace = self.dir / "trace"
        preload = {"before": f"{library}:{PRELOAD}", "after": f"{PRELOAD}:{library}", "linked": f"{PRELOAD}"}[how]
        conf = f"ram:{20 << 20};swap:zram,size=8M;swap:file:/var/tmp;verify;tune:decompressor=1;quiet;trace:{trace}"
        env = os.environ | {"LD_PRELOAD": preload, "FARPAGE_CONF": conf}
        done = self.run_plain(program, *SWAPS, env=env)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "0 wrong\n", ""))
        self.assertGreater(max(f.stat().st_size for f in self.dir.glob("trace*")), 0)

    def test_no_engine_thread_calls_a_name_that_another_library_has(self):
        library = taking_all()
        for how in ("before", "after", "linked"):
            with self.subTest(how):
                self.swapping(library, how)

    def test_a_library_that_counts_in_thread_local_storage(self):
        library = build("counted.c", "-shared", "-fPIC", "-fno-builtin", output="counted.so")
        for how in ("before", "linked"):
            with self.subTest(how):
                self.swapping(library, how)

    @unless_there("faketime")
    def test_faketime(self):
        program = build("swaps.c", output="swaps")
        at = ["faketime", "2001-02-03 04:05:06"]
        self.assertIn("2001", self.assert_same(*at, "date", "+%Y").stdout)
        done = self.run_plain(*at, FARPAGE, "run", "--ram", "20M", "--quiet", "--", program, *SWAPS)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "0 wrong\n", ""))

    def test_what_ours_asks_for_by_name_is_on_the_list(self):
        out = subprocess.run(["readelf", "-Wr", PRELOAD], check=True, capture_output=True, text=True).stdout
        asked = set(re.findall(r"R_X86_64_(?:GLOB_DAT|JUMP_SLOT|64|COPY|TPOFF64|DTPMOD64)\s+[0-9a-f]{16} ([^@\s]+)", out))
        asked |= names_of(PRELOAD, "Uw")
        allowed = {name for names in BY_NAME.values() for name in names.split()}
        self.assertEqual(asked - allowed, set(), "another library could take these: see crates/farpage-preload/src/own")
        exported = names_of(PRELOAD, "T") & (names_of(FARPAGE, "Uw") | names_of(REGIONS, "Uw"))
        known = set(EXPORTED.split()) | set(FOR_THE_PROGRAM.split())
        self.assertEqual(exported - known, set(), "does the engine or std call these? see own::on_engine_threads")


if __name__ == "__main__":
    unittest.main()

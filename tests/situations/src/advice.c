/* advice WAY MIB: fills MIB, gives every advice of Linux 6.18 that a program may give without privilege to a third of
   the pages, and looks at what it has then: discarded pages are zero, guards are a signal, after they are removed zero,
   a child has what it is to have, and all else is what it was. WAY: libc, posix, syscall, process (all of them libc's
   functions), raw (a system call instruction), ring (io_uring). Of these two nobody hears: where guards were, anything
   goes. stacks: guards below memory that is used later, both made by system call instructions, as libc makes stacks for
   threads since glibc 2.42. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/io_uring.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL
#define RUN 4
enum { NORMAL, RANDOM, SEQUENTIAL, WILLNEED, DONTNEED, FREE = 8, REMOVE, DONTFORK, DOFORK, WIPEONFORK = 18, KEEPONFORK,
       DONTNEED_LOCKED = 24, GUARD_INSTALL = 102, GUARD_REMOVE };

static const struct { const char *name; int advice; } all[] = {
    {"NORMAL", NORMAL}, {"RANDOM", RANDOM}, {"SEQUENTIAL", SEQUENTIAL}, {"WILLNEED", WILLNEED}, {"DONTNEED", DONTNEED},
    {"FREE", FREE}, {"REMOVE", REMOVE}, {"DONTFORK", DONTFORK}, {"DOFORK", DOFORK}, {"MERGEABLE", 12},
    {"UNMERGEABLE", 13}, {"HUGEPAGE", 14}, {"NOHUGEPAGE", 15}, {"DONTDUMP", 16}, {"DODUMP", 17},
    {"WIPEONFORK", WIPEONFORK}, {"KEEPONFORK", KEEPONFORK}, {"COLD", 20}, {"PAGEOUT", 21}, {"POPULATE_READ", 22},
    {"POPULATE_WRITE", 23}, {"DONTNEED_LOCKED", DONTNEED_LOCKED}, {"COLLAPSE", 25}, {"GUARD_INSTALL", GUARD_INSTALL},
    {"GUARD_REMOVE", GUARD_REMOVE}, {"no such advice", 99},
};

static const char *way;
static char *memory;
static size_t pages;
static int me;
static sigjmp_buf back;

static int is(const char *name) { return !strcmp(way, name); }

static long raw(long nr, long a, long b, long c, long d, long e) {
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = 0;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "0"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

static int by_ring(char *at, size_t len, int advice) {
    static int fd = -1;
    static struct io_uring_params p;
    static char *rings;
    static struct io_uring_sqe *entries;
    if (fd < 0) {
        fd = syscall(SYS_io_uring_setup, 1, &p);
        if (fd < 0) return 77;
        size_t size = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe) + PAGE;
        rings = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, IORING_OFF_SQ_RING);
        entries = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, IORING_OFF_SQES);
    }
    *entries = (struct io_uring_sqe){.opcode = IORING_OP_MADVISE, .addr = (uint64_t)at, .len = len};
    entries->fadvise_advice = advice;
    *(unsigned *)(rings + p.sq_off.array) = 0;
    __atomic_fetch_add((unsigned *)(rings + p.sq_off.tail), 1, __ATOMIC_RELEASE);
    if (syscall(SYS_io_uring_enter, fd, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) != 1) return 77;
    unsigned head = __atomic_fetch_add((unsigned *)(rings + p.cq_off.head), 1, __ATOMIC_ACQ_REL);
    return -((struct io_uring_cqe *)(rings + p.cq_off.cqes))[head & (p.cq_entries - 1)].res;
}

/* 0, or why not. */
static int advise(char *at, size_t len, int advice) {
    struct iovec two[] = {{at, PAGE}, {at + PAGE, len - PAGE}};
    if (is("posix")) return posix_madvise(at, len, advice);
    if (is("syscall")) return syscall(SYS_madvise, at, len, (long)advice) ? errno : 0;
    if (is("raw")) return -raw(SYS_madvise, (long)at, len, advice, 0, 0);
    if (is("ring")) return by_ring(at, len, advice);
    if (is("process")) return process_madvise(me, two, 2, advice, 0) < 0 ? errno : 0;
    return madvise(at, len, advice) ? errno : 0;
}

static void jump(int sig) { siglongjmp(back, sig); }
static int is_signal(volatile char *at) { return sigsetjmp(back, 1) ? 1 : ((void)*at, 0); }
static int is_advised(size_t page) { return page / RUN % 3 == 1; }
static uint64_t *word(size_t page) { return (uint64_t *)(memory + page * PAGE) + page % 512; }
static uint64_t content(size_t page, size_t round) { return (page + 1) * 0x9e3779b97f4a7c15 + round; }

static size_t advise_all(int advice, int *error) {
    size_t failed = 0;
    for (size_t page = RUN; page + RUN <= pages; page += 3 * RUN)
        if ((*error = advise(memory + page * PAGE, RUN * PAGE, advice))) failed++;
    return failed;
}

/* Pages that are not what they are to be; those that were advised: zero, if so. */
static size_t wrong(size_t round, int zero, int skip) {
    size_t bad = 0;
    for (size_t page = 0; page < pages; page++)
        if (!is_advised(page)) bad += *word(page) != content(page, round);
        else if (!skip) bad += *word(page) != (zero ? 0 : content(page, round));
    return bad;
}

static int in_child(size_t round, int zero, int skip) {
    int status;
    pid_t child = fork();
    if (!child) _exit(wrong(round, zero, skip) != 0);
    waitpid(child, &status, 0);
    return status != 0;
}

/* Each has a guard, and is used up to it. */
static int stacks(size_t n) {
    enum { DEEP = 64 };
    size_t bad = 0, lost = 0;
    char *at[n];
    for (size_t i = 0; i < n; i++) {
        at[i] = (char *)raw(SYS_mmap, 0, DEEP * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
        if (raw(SYS_madvise, (long)at[i], PAGE, GUARD_INSTALL, 0, 0)) return puts("no guards"), 77;
    }
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < n; i++)
            for (size_t page = DEEP - 1; page > 0; page--) {
                uint64_t *word = (uint64_t *)(at[i] + page * PAGE);
                bad += round && *word != content(i * DEEP + page, round - 1);
                *word = content(i * DEEP + page, round);
            }
        for (size_t i = 0; i < n; i++) lost += !is_signal(at[i]);
    }
    printf("stacks: wrong %zu, guards lost %zu\n", bad, lost);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    way = argv[1], pages = atol(argv[2]) * 256 / (3 * RUN) * 3 * RUN;
    int heard = !is("raw") && !is("ring");
    me = syscall(SYS_pidfd_open, getpid(), 0);
    memory = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    signal(SIGSEGV, jump), signal(SIGBUS, jump);
    if (is("stacks")) return stacks(pages / 64);
    for (size_t i = 0, n = 0, full = 0; n < sizeof all / sizeof *all; n++) {
        int advice = all[n].advice, error = 0;
        if (!full) {
            i = n, full = 1;
            for (size_t page = 0; page < pages; page++) *word(page) = content(page, i);
        }
        size_t failed = advise_all(advice, &error);
        if (error == 77) return puts("no io_uring"), 77;
        int done = !failed && !(is("posix") && advice == DONTNEED);
        int zero = done && (advice == DONTNEED || advice == DONTNEED_LOCKED);
        size_t bad = 0, lost = 0, old = 0;
        if (done && advice == FREE) {
            /* Content or zeros, and kept from the next write on. */
            for (size_t page = 0; page < pages; page++)
                if (is_advised(page)) {
                    bad += *word(page) && *word(page) != content(page, i);
                    *word(page) = content(page, i);
                }
        } else if (done && advice == GUARD_INSTALL) {
            bad = wrong(i, 0, 1) + wrong(i, 0, 1);
            for (size_t page = 0; page < pages; page++) lost += is_advised(page) && !is_signal((char *)word(page));
            bad += in_child(i, 0, 1);
            failed = advise_all(GUARD_REMOVE, &error);
            for (size_t page = 0; page < pages; page++) old += is_advised(page) && *word(page);
            /* It is memory as any other again. */
            for (size_t page = 0; page < pages; page++) *word(page) = content(page, i);
        }
        bad += wrong(i, zero, 0);
        full = !zero;
        int forks = zero || advice == DONTFORK || advice == DOFORK || advice == WIPEONFORK || advice == KEEPONFORK;
        if (done && forks && (heard || advice != WIPEONFORK))
            bad += in_child(i, zero || advice == WIPEONFORK, advice == DONTFORK);
        if (!heard) lost = old = 0;
        printf("%s: %s, wrong %zu, guards lost %zu, old behind guards %zu\n", all[n].name,
               failed ? strerror(error) : "done", bad, lost, old);
        advise_all(advice == DONTFORK ? DOFORK : advice == WIPEONFORK ? KEEPONFORK : NORMAL, &error);
    }
    return 0;
}

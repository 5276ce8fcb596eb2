/* What the kernel tells a userfaultfd of each advice, and what is there afterwards: of a page that was there, and of
 * one that was not ("out"). Then what becomes of a guard where something is moved, copied, discarded.
 * docs/dev/events.md has the answers of Linux 6.18.
 *
 *   cc -O2 -pthread -o /tmp/advice tests/kernel/advice.c && /tmp/advice
 *
 * Not tried, because memory of the machine would be taken out of use: HWPOISON, SOFT_OFFLINE. Needs userfaultfd. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define PAGE 4096L
#define HALF 8
#define GUARD_INSTALL 102
#define GUARD_REMOVE 103

struct scanned { uint64_t start, end, categories; };
struct scan { uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, inverted, mask, anyof, told; };
#define PAGEMAP_SCAN _IOWR('f', 16, struct scan)
struct move { uint64_t dst, src, len, mode; int64_t moved; };
#define MOVE _IOWR(0xAA, 0x05, struct move)

static const struct { const char *name; int advice; } all[] = {
    {"NORMAL", 0}, {"RANDOM", 1}, {"SEQUENTIAL", 2}, {"WILLNEED", 3}, {"DONTNEED", 4}, {"FREE", 8}, {"REMOVE", 9},
    {"DONTFORK", 10}, {"DOFORK", 11}, {"MERGEABLE", 12}, {"UNMERGEABLE", 13}, {"HUGEPAGE", 14}, {"NOHUGEPAGE", 15},
    {"DONTDUMP", 16}, {"DODUMP", 17}, {"WIPEONFORK", 18}, {"KEEPONFORK", 19}, {"COLD", 20}, {"PAGEOUT", 21},
    {"POPULATE_READ", 22}, {"POPULATE_WRITE", 23}, {"DONTNEED_LOCKED", 24}, {"COLLAPSE", 25},
    {"GUARD_INSTALL", GUARD_INSTALL}, {"GUARD_REMOVE", GUARD_REMOVE},
};

static int uffd, pagemap;
static char *spare;
static char told[256];
static sigjmp_buf back;

static void jump(int sig) { siglongjmp(back, sig); }

static void *listen_(void *unused) {
    (void)unused;
    struct uffd_msg m;
    while (read(uffd, &m, sizeof m) == sizeof m) {
        if (m.event == UFFD_EVENT_PAGEFAULT) {
            struct uffdio_copy c = {m.arg.pagefault.address & ~(PAGE - 1), (uint64_t)spare, PAGE, 0, 0};
            strcat(told, "fault ");
            if (ioctl(uffd, UFFDIO_COPY, &c)) strcat(told, "(not copied) ");
        } else {
            strcat(told, m.event == UFFD_EVENT_REMOVE ? "remove " : m.event == UFFD_EVENT_UNMAP ? "unmap " : "other ");
        }
    }
    return 0;
}

static char *map(void) {
    char *at = mmap(0, 2 * HALF * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register r = {{(uint64_t)at, 2 * HALF * PAGE}, UFFDIO_REGISTER_MODE_MISSING, 0};
    madvise(at, 2 * HALF * PAGE, MADV_NOHUGEPAGE);
    for (int i = 0; i < HALF; i++) at[i * PAGE] = 7;
    if (at == MAP_FAILED || ioctl(uffd, UFFDIO_REGISTER, &r)) exit((perror("register"), 2));
    return at;
}

/* What the page table has there. */
static const char *entry(char *at) {
    struct scanned found = {0};
    struct scan s = {sizeof s, 0, (uint64_t)at, (uint64_t)at + PAGE, 0, (uint64_t)&found, 1, 0, 0, 0, 3 << 3, 0x138};
    if (ioctl(pagemap, PAGEMAP_SCAN, &s) < 0) s.told = 0x38, ioctl(pagemap, PAGEMAP_SCAN, &s);
    if (found.categories & 0x100) return "guard";
    return !found.end ? "nothing" : found.categories & 1 << 3 ? "a page" : "an entry without a page";
}

static const char *touch(volatile char *at) {
    static char text[32];
    switch (sigsetjmp(back, 1)) {
    case SIGSEGV: return "SIGSEGV";
    case SIGBUS: return "SIGBUS";
    }
    sprintf(text, "reads %d", *at);
    return text;
}

static void wait_a_little(void) { usleep(2000); }

static void try(const char *way, const char *name, int result, char *at) {
    int error = errno;
    wait_a_little();
    char was[256];
    strcpy(was, told);
    const char *first = entry(at), *second = entry(at + HALF * PAGE), *how = result < 0 ? strerrorname_np(error) : "ok";
    printf("%-16s %-16s %-9s told: %-12s there: %s, ", name, way, how, was, first);
    printf("%s;", touch(at));
    printf(" out: %s, ", second);
    printf("%s\n", touch(at + HALF * PAGE));
    told[0] = 0;
    munmap(at, 2 * HALF * PAGE);
    wait_a_little();
    told[0] = 0;
}

static void say(const char *what, int result) {
    printf("%-44s %s\n", what, result < 0 ? strerrorname_np(errno) : "done");
}

int main(void) {
    pthread_t t;
    uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
    int features = UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMAP | 1 << 15;
    struct uffdio_api api = {UFFD_API, features, 0};
    if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api)) return perror("userfaultfd"), 2;
    pagemap = open("/proc/self/pagemap", O_RDONLY);
    spare = mmap(0, 2 * HALF * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    signal(SIGSEGV, jump), signal(SIGBUS, jump);
    pthread_create(&t, 0, listen_, 0);
    int me = syscall(SYS_pidfd_open, getpid(), 0), child = fork();
    if (!child) pause(), _exit(0);
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        char *at = map();
        int r = madvise(at, 2 * HALF * PAGE, all[i].advice);
        try("madvise", all[i].name, r, at);
        at = map();
        struct iovec v = {at, 2 * HALF * PAGE};
        r = syscall(SYS_process_madvise, me, &v, 1L, (long)all[i].advice, 0L);
        try("process_madvise", all[i].name, r, at);
        int other = syscall(SYS_pidfd_open, child, 0);
        v.iov_base = spare;
        r = syscall(SYS_process_madvise, other, &v, 1L, (long)all[i].advice, 0L);
        if (r >= 0) printf("%-16s of another process: allowed\n", all[i].name);
        close(other);
    }
    char *at = map();
    madvise(at, PAGE, MADV_FREE), wait_a_little();
    struct uffdio_zeropage z = {{(uint64_t)at, PAGE}, 0, 0};
    struct uffdio_copy c = {(uint64_t)at, (uint64_t)spare, PAGE, 0, 0};
    struct move m = {(uint64_t)at + HALF * PAGE, (uint64_t)at, PAGE, 0, 0};
    madvise(at, PAGE, GUARD_INSTALL);
    say("move of a guard to elsewhere", ioctl(uffd, MOVE, &m));
    spare[0] = 1;
    m = (struct move){(uint64_t)at, (uint64_t)at + PAGE, PAGE, 0, 0};
    say("move to a guard", ioctl(uffd, MOVE, &m));
    say("zero page to a guard", ioctl(uffd, UFFDIO_ZEROPAGE, &z));
    madvise(at, PAGE, MADV_DONTNEED), wait_a_little();
    printf("after a discard of a guard: %s\n", entry(at));
    madvise(at, PAGE, MADV_FREE), wait_a_little();
    printf("after MADV_FREE of a guard: %s\n", entry(at));
    say("copy to a guard", ioctl(uffd, UFFDIO_COPY, &c));
    printf("afterwards there is %s, and it %s\n", entry(at), touch(at));
    kill(child, SIGKILL);
    return 0;
}

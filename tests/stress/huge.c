// Forks while the kernel makes huge pages of what a child has inherited (MADV_HUGEPAGE): a page that is swapped out is
// not a page of zeros. The parent asks for it all the time, which is what khugepaged does every now and then. Only 2
// MiB in which the child has written are made one, so the forking thread has its stack among the data.
//
//   huge MIB FORKS
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
enum { PAGE = 4096, HUGE = 2 << 20, STACK = 256 << 10 };

static unsigned char *memory;
static size_t bytes;
static int forks;
static volatile pid_t forker;
static volatile long failed = -1;

static uint64_t value(size_t page) { return page * 0x9e3779b97f4a7c15u | 1; }

// The data begins behind the stack.
static int is_right(void) {
    for (size_t page = STACK / PAGE; page < bytes / PAGE; page++)
        if (*(uint64_t *)(memory + page * PAGE) != value(page)) return 0;
    return 1;
}

static void *fork_some(void *unused) {
    (void)unused;
    forker = (pid_t)syscall(SYS_gettid);
    int bad = 0;
    for (int i = 0; i < forks && !bad; i++) {
        // Said again, now that the memory is managed.
        bad = madvise(memory, bytes, MADV_HUGEPAGE);
        pid_t child = fork();
        if (child == 0) _exit(is_right() ? 0 : 1);
        int status = -1;
        waitpid(child, &status, 0);
        bad |= child < 0 || status || !is_right();
        if (bad) printf("fork %d: child %x\n", i, status);
    }
    failed = bad;
    return NULL;
}

int main(int argc, char **argv) {
    bytes = (size_t)(argc > 1 ? atoi(argv[1]) : 48) << 20;
    forks = argc > 2 ? atoi(argv[2]) : 20;
    if (posix_memalign((void **)&memory, HUGE, bytes) || madvise(memory, bytes, MADV_HUGEPAGE)) return perror("memory"), 2;
    for (size_t page = STACK / PAGE; page < bytes / PAGE; page++) *(uint64_t *)(memory + page * PAGE) = value(page);
    pthread_t other;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, memory, STACK);
    if (pthread_create(&other, &attributes, fork_some, NULL)) return 2;
    while (!forker) usleep(1000);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)forker);
    int list = open(path, O_RDONLY | O_CLOEXEC);
    long asked = 0;
    while (failed < 0) {
        char pid[32] = "";
        if (pread(list, pid, sizeof pid - 1, 0) <= 0) continue;
        int child = (int)syscall(SYS_pidfd_open, atoi(pid), 0);
        if (child < 0) continue;
        struct iovec part = { memory, HUGE };
        asked += syscall(SYS_process_madvise, child, &part, 1, MADV_COLLAPSE, 0) >= 0 || errno == EINVAL;
        close(child);
    }
    pthread_join(other, NULL);
    if (!asked) return puts("no child was asked (not root?): no test"), 3;
    return puts(failed ? "wrong" : "ok"), (int)failed;
}

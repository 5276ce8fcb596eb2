/* Memory that is not like malloc's: written pages of a private file mapping, executable memory, the first thread's
 * stack, locked pages, shared memory, many small mappings, pieces of a reserved place. Fills so much of it, then uses
 * a heap beside it, and checks both several times.
 *
 * usage: unmanaged KIND MIB HEAP_MIB [USER]     KIND: file, code, stack, locked, shared, small, pieces, heap;
 *                                               kept: of a file, filled once and kept for two seconds, without a child
 *
 * USER: a number; the program becomes that user first, so it cannot be dumped, and its files in /proc are root's.
 * stack: run with a sufficient limit (ulimit -s). Prints "right", or what is wrong. A child is forked each time that
 * checks everything, too, and changes what is its own. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096 };

static size_t heap_bytes, wrong;
static int shared, kept;
static uint64_t *heap;
static volatile sig_atomic_t signals;

static void need(int ok, const char *what) {
    if (!ok) perror(what), exit(2);
}

static void on_signal(int sig) { signals += sig == SIGUSR1; }

/* Every eighth word: all lines of the cache, other values in each round. */
static void fill(uint64_t *memory, size_t bytes, uint64_t salt) {
    for (size_t i = 0; i < bytes / 8; i += 8) memory[i] = i ^ salt;
}

static void check(const uint64_t *memory, size_t bytes, uint64_t salt) {
    for (size_t i = 0; i < bytes / 8; i += 8) wrong += memory[i] != (i ^ salt);
}

static void tell(const char *who) {
    if (wrong) printf("%s: %zu words wrong\n", who, wrong);
    fflush(stdout);
}

static void use(uint64_t *memory, size_t bytes) {
    if (kept) {
        fill(memory, bytes, 1);
        sleep(2);
        return check(memory, bytes, 1);
    }
    for (uint64_t salt = 1; salt <= 3; salt++) {
        fill(memory, bytes, salt);
        fill(heap, heap_bytes, ~salt);
        check(memory, bytes, salt);
        check(heap, heap_bytes, ~salt);
        pid_t child = fork();
        need(child >= 0, "fork");
        if (child == 0) {
            check(memory, bytes, salt);
            check(heap, heap_bytes, ~salt);
            if (!shared) {
                fill(memory, bytes, 99);
                check(memory, bytes, 99);
            }
            tell("child");
            _exit(wrong != 0);
        }
        int status;
        need(waitpid(child, &status, 0) == child, "waitpid");
        wrong += status != 0;
        check(memory, bytes, salt);
        check(heap, heap_bytes, ~salt);
    }
}

/* Code at the start of the memory: returns its argument + 1. Called after the page has been out. */
static void run_code(unsigned char *memory, size_t bytes) {
    static const unsigned char code[] = {0x8d, 0x47, 0x01, 0xc3}; /* lea eax, [rdi + 1]; ret */
    int (*next)(int);
    for (size_t at = 0; at < bytes; at += 1 << 20) {
        memcpy(memory + at + 16, code, sizeof code);
    }
    use((uint64_t *)memory, bytes);
    for (size_t at = 0; at < bytes; at += 1 << 20) {
        unsigned char *here = memory + at + 16;
        memcpy(&next, &here, sizeof next);
        if (next((int)(at >> 20)) != (int)(at >> 20) + 1) wrong++;
    }
}

static void use_stack(size_t bytes) {
    uint64_t *memory = __builtin_alloca(bytes);
    struct sigaction act = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &act, NULL);
    use(memory, bytes);
    raise(SIGUSR1);
    if (signals != 1) wrong++;
    void *base;
    size_t size;
    pthread_attr_t attr;
    need(pthread_getattr_np(pthread_self(), &attr) == 0 && pthread_attr_getstack(&attr, &base, &size) == 0, "getattr");
    /* What libc believes the stack to be must hold all of it. */
    if ((char *)base > (char *)memory || size < bytes) printf("libc's stack: %zu bytes\n", size), wrong++;
    FILE *args = fopen("/proc/self/cmdline", "r");
    char line[4096];
    need(args && fread(line, 1, sizeof line, args) > 0 && !strcmp(line, program_invocation_name), "cmdline");
}

/* Mappings of so many pages each, filled one by one. Small ones: neighbours differ, so that they do not become one. */
static void map_pieces(char *memory, size_t bytes, size_t pages) {
    size_t len = pages * PAGE;
    for (size_t at = 0; at < bytes; at += len) {
        char *made = mmap(memory + at, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        need(made != MAP_FAILED, "mmap");
        if (pages == 2 && at / len % 2) need(!madvise(made, len, MADV_DONTDUMP), "madvise");
        memset(made, 1, len);
    }
}

int main(int argc, char **argv) {
    if (argc != 4 && argc != 5) return 2;
    if (argc == 5) need(setgid((gid_t)atol(argv[4])) == 0 && setuid((uid_t)atol(argv[4])) == 0, "setuid");
    size_t bytes = (size_t)atol(argv[2]) << 20;
    heap_bytes = (size_t)atol(argv[3]) << 20;
    heap = malloc(heap_bytes);
    need(heap != NULL, "malloc");
    int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS, fd = -1;
    if (!strcmp(argv[1], "stack")) {
        use_stack(bytes);
    } else {
        kept = !strcmp(argv[1], "kept");
        if (kept || !strcmp(argv[1], "file")) {
            FILE *file = tmpfile();
            need(file && ftruncate(fileno(file), (off_t)bytes) == 0, "tmpfile");
            fd = fileno(file), flags = MAP_PRIVATE;
        }
        int code = !strcmp(argv[1], "code");
        if (code) prot |= PROT_EXEC;
        shared = !strcmp(argv[1], "shared");
        if (shared) flags = MAP_SHARED | MAP_ANONYMOUS;
        int small = !strcmp(argv[1], "small"), pieces = small || !strcmp(argv[1], "pieces");
        if (small) flags = MAP_SHARED | MAP_ANONYMOUS; /* only the place */
        void *memory = mmap(NULL, bytes, pieces ? PROT_NONE : prot, flags, fd, 0);
        need(memory != MAP_FAILED, "mmap");
        if (pieces) map_pieces(memory, bytes, small ? 2 : 16);
        if (!strcmp(argv[1], "locked")) need(mlock(memory, bytes) == 0, "mlock");
        if (code) run_code(memory, bytes);
        else use(memory, bytes);
    }
    tell("parent");
    if (!wrong) puts("right");
    return wrong != 0;
}

// Children that at once do what needs a thread of the engine which is started only then: each its own thing, first of
// all. All of them see the right bytes.
//
//   newborn TIMES MIB
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NOTHING, READ, WRITE, DISCARD, UNMAP, MOVE, GROW, FORK, GROUP, REPLACE, WAYS };

static unsigned char *cold;
static size_t bytes, page = 4096;

static unsigned char at(size_t i) { return (unsigned char)(i / page * 7 + 1); }

// The first byte of each page from one to another.
static int right(size_t from, size_t to) {
    for (size_t i = from; i < to; i += page)
        if (cold[i] != at(i)) return 0;
    return 1;
}

static int ended(pid_t child) {
    int status = -1;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

static int does(int what) {
    size_t half = bytes / 2;
    switch (what) {
    case READ: return right(0, bytes);
    case WRITE:
        for (size_t i = 0; i < half; i += page) cold[i + 1] = 1;
        return right(0, half);
    case DISCARD: return madvise(cold, half, MADV_DONTNEED) == 0 && cold[half - page] == 0 && right(half, bytes);
    case UNMAP: return munmap(cold, half) == 0 && right(half, bytes);
    case MOVE: {
        unsigned char *there = mremap(cold, half, 2 * half, MREMAP_MAYMOVE);
        return there != MAP_FAILED && there[page] == at(page) && there[half - page] == at(half - page);
    }
    case GROW: {
        char *more = malloc(half);
        return more && memset(more, 1, half) && more[half - 1] == 1 && right(0, page * 16);
    }
    case FORK: {
        pid_t child = fork();
        if (child == 0) _exit(!right(0, half));
        return ended(child) && right(half, bytes);
    }
    case GROUP: return (geteuid() || setgid(65534) == 0) && right(0, half);
    case REPLACE: return execl("/bin/true", "true", NULL), 0;
    default: return 1;
    }
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    bytes = (size_t)atoi(argv[2]) << 20;
    cold = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (cold == MAP_FAILED) return 2;
    for (size_t i = 0; i < bytes; i += page) {
        for (size_t j = 8; j < page; j++) cold[i + j] = (unsigned char)rand();
        cold[i] = at(i);
    }
    for (int i = 0; i < atoi(argv[1]) * WAYS; i++) {
        pid_t child = fork();
        if (child == 0) _exit(!does(i % WAYS));
        if (!ended(child)) return printf("child %d, of way %d\n", i, i % WAYS), 1;
    }
    return puts("ok"), 0;
}

// Memory that children are to have without its content (MADV_WIPEONFORK), swapped out or not, beside memory that they
// keep.
//
//   wipe MIB
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PART = 4 << 20 };

static int all(const unsigned char *at, int value) {
    for (size_t i = 0; i < PART; i++)
        if (at[i] != value) return 0;
    return 1;
}

int main(int argc, char **argv) {
    size_t bytes = (size_t)(argc > 1 ? atoi(argv[1]) : 96) << 20;
    unsigned char *at = mmap(NULL, 3 * PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t *other = malloc(bytes);
    if (at == MAP_FAILED || !other) return 2;
    memset(at, 7, 3 * PART);
    if (madvise(at + PART, PART, MADV_WIPEONFORK)) return perror("madvise"), 2;
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < bytes / sizeof *other; i++) other[i] = i * 0x9e3779b97f4a7c15u + (size_t)round;
        pid_t child = fork();
        if (child == 0) {
            int bad = (all(at, 7) ? 0 : 1) | (all(at + PART, 0) ? 0 : 2) | (all(at + 2 * PART, 7) ? 0 : 4);
            memset(at + PART, 9, PART);
            // Swapped out in the child, too.
            for (size_t i = 0; i < bytes / sizeof *other; i++) bad |= other[i]++ != i * 0x9e3779b97f4a7c15u + (size_t)round ? 8 : 0;
            _exit(bad | (all(at + PART, 9) ? 0 : 16));
        }
        int status = -1;
        waitpid(child, &status, 0);
        if (child < 0 || status || !all(at + PART, 7)) return printf("round %d: child %x\n", round, status), 1;
    }
    return puts("ok"), 0;
}

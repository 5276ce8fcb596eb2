/* Memory that a program locks under a budget: some may be locked, and more is refused as by any lock limit; nothing
 * hangs.
 *
 * usage: locked BUDGET_MIB      (0: without farpage; locks nothing)
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096 };

static int refused(const char *what, long result, int with) {
    if (result == -1 && errno == with) return 0;
    dprintf(2, "locked: %s: result %ld, errno %d; expected errno %d\n", what, result, errno, with);
    return 1;
}

static int check(const uint64_t *memory, size_t bytes, uint64_t salt) {
    size_t wrong = 0;
    for (size_t i = 0; i < bytes / 8; i++) wrong += memory[i] != (i ^ salt);
    if (wrong) dprintf(2, "locked: %zu words wrong\n", wrong);
    return wrong != 0;
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    size_t budget = (size_t)atol(argv[1]) << 20, bytes = (budget ? budget : 24 << 20) * 3;
    uint64_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 2;
    int failed = 0;
    for (uint64_t salt = 1; salt < 4; salt++) {
        for (size_t i = 0; i < bytes / 8; i++) memory[i] = i ^ salt;
        if (budget) {
            failed += refused("mlockall", mlockall(MCL_CURRENT | MCL_FUTURE), ENOMEM);
            failed += refused("mlockall, bare", syscall(SYS_mlockall, MCL_CURRENT), ENOMEM);
            failed += refused("mlock", mlock(memory, budget), ENOMEM);
            void *locked = mmap(NULL, budget, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0);
            failed += refused("mmap", locked == MAP_FAILED ? -1 : 0, EAGAIN);
            /* A quarter of the budget may be locked, and other parts of the memory next time. */
            char *part = (char *)memory + salt * (budget / 2);
            if (mlock(part, budget / 4)) failed++, perror("locked: mlock of a quarter");
            unsigned char there[1 << 12];
            if (budget / 4 / PAGE > sizeof there) return 2;
            failed += check(memory, bytes, salt);
            if (mincore(part, budget / 4, there)) return 2;
            for (size_t i = 0; i < budget / 4 / PAGE; i++)
                if (!(there[i] & 1)) return dprintf(2, "locked: page %zu of the locked ones was taken out\n", i), 1;
            if (munlock(part, budget / 4)) failed++, perror("locked: munlock");
        }
        failed += check(memory, bytes, salt);
    }
    dprintf(1, "%zu MiB right, %d failures\n", bytes >> 20, failed);
    return failed != 0;
}

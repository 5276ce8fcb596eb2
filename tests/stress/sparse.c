// Memory that is spread thin: a page in each 4 MiB, beside a block. Each page costs a leaf of the page table.
//
//   sparse PAGES MIB
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { GAP = 4 << 20 };

int main(int argc, char **argv) {
    size_t pages = argc > 1 ? (size_t)atol(argv[1]) : 1500, words = (size_t)(argc > 2 ? atoi(argv[2]) : 48) << 17;
    char *at = mmap(NULL, pages * GAP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uint64_t *block = malloc(words * sizeof *block);
    if (at == MAP_FAILED || !block) return perror("memory"), 2;
    size_t wrong = 0;
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < words; i++) {
            wrong += round && block[i] != (i + (uint64_t)round - 1) * 0x9e3779b97f4a7c15u;
            block[i] = (i + (uint64_t)round) * 0x9e3779b97f4a7c15u;
        }
        for (size_t i = 0; i < pages; i++) wrong += at[i * GAP]++ != round;
    }
    return printf(wrong ? "%zu are wrong\n" : "ok\n", wrong), wrong != 0;
}

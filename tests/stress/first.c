// Several threads fault on the same page at the same moment, so that some faults are served when the page is there
// already. With conf `debug_evict_all` it is taken out again while zeros are made ready for such a fault: they must not
// be placed then.
//
//   first MIB THREADS STEPS
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { PAGE = 4096, WORDS = PAGE / 8, THREADS = 64, SEED = 0x5eed };

static uint64_t *memory;
static size_t pages;
static long threads, steps;
static pthread_barrier_t barrier;

static uint64_t next(uint64_t *x) {
    *x ^= *x << 13;
    *x ^= *x >> 7;
    return *x ^= *x << 17;
}

// All go through the same pages at random; each counts in a word of its own.
static void *count(void *arg) {
    uint64_t x = SEED;
    for (long i = 0; i < steps; i++) {
        if (i % 16 == 0) pthread_barrier_wait(&barrier);
        memory[next(&x) % pages * WORDS + (size_t)arg]++;
    }
    return NULL;
}

int main(int argc, char **argv) {
    pages = (size_t)(argc > 1 ? atoi(argv[1]) : 16) << 8;
    threads = argc > 2 ? atoi(argv[2]) : 4;
    steps = argc > 3 ? atol(argv[3]) : 2000;
    pthread_t ids[THREADS];
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || threads < 1 || threads > THREADS) return 2;
    uint64_t x = 1, y = SEED;
    for (size_t i = 0; i < pages * WORDS; i++) memory[i] = i % WORDS < THREADS ? 0 : next(&x);
    pthread_barrier_init(&barrier, NULL, (unsigned)threads);
    for (long t = 0; t < threads; t++)
        if (pthread_create(&ids[t], NULL, count, (void *)t)) return 2;
    for (long t = 0; t < threads; t++) pthread_join(ids[t], NULL);
    uint64_t *want = calloc(pages, sizeof *want);
    for (long i = 0; want && i < steps; i++) want[next(&y) % pages]++;
    size_t wrong = 0;
    x = 1;
    for (size_t i = 0; want && i < pages * WORDS; i++) {
        size_t thread = i % WORDS;
        wrong += memory[i] != (thread >= THREADS ? next(&x) : thread < (size_t)threads ? want[i / WORDS] : 0);
    }
    return printf(wrong ? "%zu words are wrong\n" : "ok\n", wrong), wrong != 0;
}

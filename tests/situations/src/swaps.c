/* Threads that fill, change and compare memory, and fork children that compare it all. Every word is known.
 *
 *     swaps MIB THREADS ROUNDS */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define WORDS (PAGE / 8)

static size_t pages; /* of each thread */
static unsigned threads, rounds;
static char *memory[64];
static uint8_t *versions[64]; /* shared, so never swapped out */

/* Every second page compresses well. */
static uint64_t word(unsigned thread, size_t page, unsigned version, unsigned i)
{
    uint64_t x = (page * 64 + thread) * 256 + version;
    return page & 1 ? x * 4 + (i & 3) : (x * WORDS + i) * 0x9e3779b97f4a7c15u ^ x << 29;
}

static void fill(uint64_t *page, unsigned thread, size_t number, unsigned version)
{
    for (unsigned i = 0; i < WORDS; i++)
        page[i] = word(thread, number, version, i);
}

static size_t wrong(unsigned thread, size_t step)
{
    size_t bad = 0;
    uint64_t wanted[WORDS];
    for (size_t p = 0; p < pages; p += step) {
        fill(wanted, thread, p, versions[thread][p]);
        bad += memcmp(wanted, memory[thread] + p * PAGE, PAGE) != 0;
    }
    return bad;
}

static void *work(void *arg)
{
    unsigned thread = (uintptr_t)arg;
    uint64_t page[WORDS];
    size_t bad = 0;
    struct timespec now;
    for (unsigned r = 1; r <= rounds; r++) {
        for (size_t p = 0; p < pages; p++) {
            fill(page, thread, p, r);
            memcpy(memory[thread] + p * PAGE, page, PAGE);
            versions[thread][p] = r;
            clock_gettime(CLOCK_MONOTONIC, &now);
        }
        bad += wrong(thread, 1);
    }
    return (void *)bad;
}

static void *map(size_t bytes, int how)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, how | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        perror("mmap"), exit(2);
    return at;
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    threads = atoi(argv[2]), rounds = atoi(argv[3]);
    pages = ((size_t)atoi(argv[1]) << 20) / PAGE / threads;
    for (unsigned t = 0; t < threads; t++)
        memory[t] = map(pages * PAGE, MAP_PRIVATE), versions[t] = map(pages, MAP_SHARED);
    pthread_t ids[64];
    size_t bad = 0;
    void *result;
    for (uintptr_t t = 0; t < threads; t++)
        pthread_create(&ids[t], NULL, work, (void *)t);
    for (unsigned t = 0; t < threads; t++)
        pthread_join(ids[t], &result), bad += (size_t)result;
    for (unsigned child = 0; child < 3; child++) {
        int status;
        pid_t pid = fork();
        if (pid == 0) {
            size_t lost = 0;
            for (unsigned t = 0; t < threads; t++)
                lost += wrong(t, 3);
            if (child == 2) /* One that swaps, too. */
                pthread_create(ids, NULL, work, 0), pthread_join(*ids, &result), lost += (size_t)result;
            _exit(lost != 0);
        }
        if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
            printf("child %u: status %d\n", child, status), bad++;
    }
    printf("%zu wrong\n", bad);
    return bad != 0;
}

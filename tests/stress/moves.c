/* Threads that move their memory to places which others have just left, again and again, and look at it.
 *
 * The kernel tells of such moves in another order than they were made: docs/dev/events.md. Each word names its thread
 * and page, so content that was lost or came to another thread is noticed.
 *
 * usage: moves THREADS ROUNDS PAGES
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, LOOKS = 40, THREADS_MAX = 64 };

static uint64_t rounds, pages;

static void need(int ok, const char *what) {
    if (ok) return;
    perror(what);
    exit(2);
}

static void *work(void *arg) {
    uint64_t id = (uint64_t)(uintptr_t)arg;
    size_t size = pages * PAGE;
    uint64_t *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    need(p != MAP_FAILED, "mmap");
    for (uint64_t i = 0; i < pages; i++) p[i * WORDS] = id << 32 | (i + 1);
    for (uint64_t round = 0; round < rounds; round++) {
        void *hole = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        need(hole != MAP_FAILED, "mmap of a place");
        p = mremap(p, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, hole);
        need(p != MAP_FAILED, "mremap");
        for (uint64_t look = 0; look < LOOKS; look++) {
            uint64_t i = (round * 7919 + look * 104729 + id * 31) % pages, got = p[i * WORDS];
            if (got == (id << 32 | (i + 1))) continue;
            fprintf(stderr, "moves: thread %lu, round %lu: page %lu at %p is %#lx\n", id, round, i,
                    (void *)(p + i * WORDS), got);
            _exit(1);
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    unsigned threads = argc > 3 ? strtoul(argv[1], NULL, 0) : 0;
    if (argc > 3) {
        rounds = strtoul(argv[2], NULL, 0);
        pages = strtoul(argv[3], NULL, 0);
    }
    if (threads == 0 || threads > THREADS_MAX || rounds == 0 || pages == 0) {
        fprintf(stderr, "usage: moves THREADS ROUNDS PAGES\n");
        return 2;
    }
    pthread_t ids[THREADS_MAX];
    for (unsigned t = 0; t < threads; t++)
        need(pthread_create(&ids[t], NULL, work, (void *)(uintptr_t)(t + 1)) == 0, "pthread_create");
    for (unsigned t = 0; t < threads; t++) pthread_join(ids[t], NULL);
    return 0;
}

/* Threads make memory as glibc's malloc makes an arena: map twice what it takes, unmap what is not aligned, and make
 * the next one in the place behind it, which was unmapped a moment ago. Every heap that is filled must be managed:
 * registered with userfaultfd ("um" in /proc/self/smaps). It was not where the engine registered what had just been
 * unmapped.
 *
 * Usage: arenas MB ROUNDS. Says "ok", or which heaps are not managed, with status 1.
 */
#define _GNU_SOURCE
#include <err.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { THREADS = 4, KEPT = 100, HEAP = 8 << 20, FILLED = 64 << 10 };

static char *heaps[THREADS][KEPT];
static int rounds;

static char *map(void *hint, size_t size)
{
    char *p = mmap(hint, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        err(2, "mmap");
    return p;
}

static int is_aligned(const char *p)
{
    return (uintptr_t)p % HEAP == 0;
}

static char *new_heap(char **behind)
{
    char *p = NULL;
    if (*behind) {
        p = map(*behind, HEAP);
        *behind = NULL;
        if (!is_aligned(p)) {
            munmap(p, HEAP);
            p = NULL;
        }
    }
    if (!p) {
        char *twice = map(NULL, 2 * HEAP);
        p = (char *)(((uintptr_t)twice + HEAP - 1) / HEAP * HEAP);
        if (p != twice)
            munmap(twice, p - twice);
        else
            *behind = p + HEAP;
        munmap(p + HEAP, twice + HEAP - p);
    }
    if (mprotect(p, FILLED, PROT_READ | PROT_WRITE))
        err(2, "mprotect");
    memset(p, 1, FILLED);
    return p;
}

static void *thread(void *number)
{
    char **mine = heaps[(intptr_t)number], *behind = NULL;
    for (int i = 0; i < rounds; i++) {
        char **place = &mine[i % KEPT];
        if (*place)
            munmap(*place, HEAP);
        *place = new_heap(&behind);
    }
    return NULL;
}

/* Whether the mapping around p has the flag that says so. */
static int is_managed(const char *p)
{
    FILE *smaps = fopen("/proc/self/smaps", "r");
    char line[512];
    int inside = 0, found = 0;
    if (!smaps)
        err(2, "smaps");
    while (fgets(line, sizeof line, smaps)) {
        uintptr_t start, end;
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            inside = start <= (uintptr_t)p && (uintptr_t)p < end;
        else if (inside && !strncmp(line, "VmFlags:", 8))
            found = strstr(line, " um ") != NULL;
    }
    fclose(smaps);
    return found;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    int missing = 0, waits = 0;
    if (argc != 3)
        errx(2, "usage: arenas MB ROUNDS");
    size_t size = (size_t)atoi(argv[1]) << 20;
    char *much = malloc(size);
    memset(much, 1, size); /* managed from here on */
    rounds = atoi(argv[2]);
    for (intptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, thread, (void *)i))
            errx(2, "pthread_create");
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS * KEPT; i++) {
        char *heap = heaps[i / KEPT][i % KEPT];
        /* A new mapping is managed some milliseconds after it was made, or, if it is the last and small, when the
         * budget is short again; one that never is, not even then. */
        for (; waits < 300 && !is_managed(heap); waits++) {
            memset(much, waits, size);
            usleep(10000);
        }
        if (!is_managed(heap)) {
            printf("the heap at %p is not managed\n", heap);
            missing = 1;
        }
    }
    if (!missing)
        puts("ok");
    return missing;
}

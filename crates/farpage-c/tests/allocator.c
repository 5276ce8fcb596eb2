/* The allocator: large blocks are regions, small ones malloc's; growing, shrinking, threads, forks, after its end. */

#include "farpage.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #what, fp_last_error()); \
            exit(1); \
        } \
    } while (0)

enum { LARGE = 1 << 20, THREADS = 3, ROUNDS = 300, FORKS = 40 };

static fp_pager *pager;
static fp_allocator *allocator, *smaller;

static uint64_t held(void)
{
    fp_stats stats;
    CHECK(fp_pager_stats(pager, &stats, sizeof stats) == FP_OK);
    return stats.resident_bytes + stats.pool_orig_bytes + stats.file_bytes;
}

static void fill(unsigned char *block, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++)
        block[i] = (unsigned char)(i * 2654435761u >> 24);
}

static void right(const unsigned char *block, size_t to)
{
    for (size_t i = 0; i < to; i++)
        CHECK(block[i] == (unsigned char)(i * 2654435761u >> 24));
}

static void blocks(void)
{
    unsigned char *small = fp_malloc(allocator, LARGE - 1);
    memset(small, 1, LARGE - 1);
    CHECK(held() == 0);
    unsigned char *large = fp_malloc(allocator, LARGE);
    fill(large, 0, LARGE);
    CHECK(held() == LARGE && (uintptr_t)large % 4096 == 0);
    fp_free(allocator, small, LARGE - 1);
    /* Sixteen times the budget comes back. */
    large = fp_realloc(allocator, large, 64 * LARGE);
    right(large, LARGE);
    fill(large, LARGE, 64 * LARGE);
    right(large, 64 * LARGE);
    large = fp_realloc(allocator, large, 2 * LARGE + 5);
    right(large, 2 * LARGE + 5);
    large = fp_realloc(allocator, large, 100);
    right(large, 100);
    CHECK(held() == 0);
    large = fp_realloc(allocator, large, LARGE);
    right(large, 100);
    CHECK(held() > 0);
    fp_free(allocator, large, 0);
    CHECK(held() == 0);
    unsigned char *zeros = fp_calloc(allocator, 3, LARGE);
    for (size_t i = 0; i < 3 * LARGE; i++)
        CHECK(zeros[i] == 0);
    fp_free(allocator, zeros, 3 * LARGE);
    CHECK(fp_calloc(allocator, SIZE_MAX, 3) == NULL);
    fp_free(allocator, NULL, 0);
    /* What cannot be had is NULL, and what there was stays. */
    large = fp_realloc(allocator, NULL, LARGE);
    fill(large, 0, LARGE);
    CHECK(fp_malloc(allocator, SIZE_MAX / 2) == NULL && strstr(fp_last_error(), "does not fit"));
    CHECK(fp_realloc(allocator, large, SIZE_MAX / 2) == NULL);
    right(large, LARGE);
    fp_free(allocator, large, LARGE);
}

/* Small blocks that were freed are used again, up to a sixteenth of the budget; zeros are zero. */
static void spares(void)
{
    enum { BLOCK = 4 * 4096, MOST = FP_BUDGET_MIN / 16 / BLOCK };
    fp_allocator *small;
    CHECK(fp_allocator_new(pager, BLOCK, &small) == FP_OK && held() == 0);
    unsigned char *block = fp_malloc(small, BLOCK);
    fill(block, 0, BLOCK);
    fp_free(small, block, BLOCK);
    CHECK(held() == BLOCK);
    fp_stats before, after;
    CHECK(fp_pager_stats(pager, &before, sizeof before) == FP_OK);
    CHECK(fp_malloc(small, BLOCK) == block);
    memset(block, 7, BLOCK);
    CHECK(fp_pager_stats(pager, &after, sizeof after) == FP_OK && after.pgfault == before.pgfault);
    fp_free(small, block, BLOCK);
    unsigned char *zeros = fp_calloc(small, 4, 4096), *other = fp_malloc(small, BLOCK + 4096);
    CHECK(zeros != block && other != block && zeros[0] == 0 && zeros[BLOCK - 1] == 0);
    fp_free(small, zeros, BLOCK);
    fp_free(small, other, BLOCK + 4096);
    unsigned char *blocks[2 * MOST];
    for (int i = 0; i < 2 * MOST; i++) {
        blocks[i] = fp_malloc(small, BLOCK);
        memset(blocks[i], i + 1, BLOCK);
        for (int j = 0; j <= i; j++)
            CHECK(blocks[j][BLOCK - 1] == (unsigned char)(j + 1));
    }
    CHECK(held() >= 2 * MOST * BLOCK);
    for (int i = 0; i < 2 * MOST; i++)
        fp_free(small, blocks[i], BLOCK);
    CHECK(held() > 0 && held() <= MOST * BLOCK);
    fp_allocator_free(small);
    CHECK(held() == 0);
}

enum { SMALL = 4 * 4096 };

static void *make_and_free(void *done)
{
    for (int i = 0; !done || (i < ROUNDS && !__atomic_load_n((int *)done, __ATOMIC_RELAXED)); i++) {
        if (!done && i == 20)
            break;
        unsigned char *block = fp_malloc(allocator, LARGE + (size_t)i % 7 * 4096);
        CHECK(block);
        fill(block, 0, 5000);
        block = fp_realloc(allocator, block, 2 * LARGE);
        right(block, 5000);
        fp_free(allocator, block, 0);
        /* One that others may have freed, and that nobody else has now. */
        unsigned char *first = fp_malloc(smaller, SMALL), *second = fp_malloc(smaller, SMALL);
        CHECK(first && second && first != second);
        memset(first, i, SMALL);
        memset(second, ~i, SMALL);
        CHECK(first[SMALL - 1] == (unsigned char)i && second[0] == (unsigned char)~i);
        fp_free(smaller, first, SMALL);
        fp_free(smaller, second, SMALL);
    }
    return NULL;
}

/* A child that has no regions gets none of those that were freed, either. */
static void child_without_regions(void)
{
    fp_config config;
    fp_pager *own;
    fp_allocator *from;
    CHECK(fp_config_init(&config) == FP_OK);
    config.budget_bytes = FP_BUDGET_MIN;
    CHECK(fp_pager_new(&config, &own) == FP_OK && fp_allocator_new(own, SMALL, &from) == FP_OK);
    unsigned char *kept = fp_malloc(from, SMALL), *freed = fp_malloc(from, SMALL);
    memset(kept, 1, SMALL);
    memset(freed, 2, SMALL);
    fp_free(from, freed, SMALL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(fp_malloc(from, SMALL) == NULL);
        fp_free(from, kept, SMALL);
        CHECK(fp_malloc(from, SMALL) == NULL);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(fp_malloc(from, SMALL) == freed && kept[0] == 1);
    fp_free(from, kept, SMALL);
    fp_free(from, freed, SMALL);
    fp_allocator_free(from);
    fp_pager_free(own);
}

/* Forks while others are in the allocator: each child can use it. */
static void forks(void)
{
    int done = 0;
    pthread_t threads[THREADS];
    unsigned char *block = fp_malloc(allocator, LARGE);
    fill(block, 0, LARGE);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, make_and_free, &done) == 0);
    for (int i = 0; i < FORKS; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(300); /* a lock that is never given back */
            right(block, LARGE);
            make_and_free(NULL);
            fp_free(allocator, block, LARGE);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    __atomic_store_n(&done, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    right(block, LARGE);
    fp_free(allocator, block, LARGE);
}

int main(void)
{
    CHECK(fp_allocator_new(NULL, LARGE, &allocator) == FP_ERR_NULL);
    fp_allocator_free(NULL);
    fp_config config;
    CHECK(fp_config_init(&config) == FP_OK);
    config.budget_bytes = FP_BUDGET_MIN;
    config.inherit = 1;
    CHECK(fp_pager_new(&config, &pager) == FP_OK);
    CHECK(fp_allocator_new(pager, LARGE, NULL) == FP_ERR_NULL);
    CHECK(fp_allocator_new(pager, LARGE, &allocator) == FP_OK);
    blocks();
    spares();
    child_without_regions();
    CHECK(fp_allocator_new(pager, SMALL, &smaller) == FP_OK);
    forks();
    fp_allocator_free(smaller);
    CHECK(held() == 0);
    /* After its end: blocks stay, new ones are malloc's. */
    unsigned char *block = fp_malloc(allocator, 2 * LARGE);
    fill(block, 0, 2 * LARGE);
    fp_allocator_free(allocator);
    right(block, 2 * LARGE);
    uint64_t before = held();
    unsigned char *later = fp_malloc(allocator, LARGE);
    memset(later, 1, LARGE);
    CHECK(held() == before);
    fp_free(allocator, later, LARGE);
    block = fp_realloc(allocator, block, LARGE);
    right(block, LARGE);
    CHECK(held() == 0);
    fp_pager_free(pager);
    fp_free(allocator, block, LARGE);
    return 0;
}

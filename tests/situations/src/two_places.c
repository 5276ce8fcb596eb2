/* One thread that reads what was written first, in any order, and one that reads what was written last.
 *
 *     two_places MB MB
 *
 * Writes both, says "full" and waits for a line. Then the threads begin, each with pages of its part. When the second
 * has read all of its own it says how many pages the first has read by then. After another line the first one ends,
 * too. */
#include <err.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { WORDS = 512 };

static uint64_t *first, *last;
static size_t first_pages, last_pages;
static atomic_size_t read_of_first;
static atomic_bool ended;

/* Words that do not compress. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 33) * 0xff51afd7ed558ccd;
    return (x ^ x >> 33) * 0xc4ceb9fe1a85ec53;
}

static void fill(uint64_t *pages, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n * WORDS; i++)
        pages[i] = mix(seed << 40 | i);
}

static void check(const uint64_t *pages, size_t page, uint64_t seed)
{
    for (size_t i = page * WORDS; i < (page + 1) * WORDS; i += 73)
        if (pages[i] != mix(seed << 40 | i))
            errx(3, "page %zu of %lu is wrong", page, (unsigned long)seed);
}

static void *read_first(void *none)
{
    for (size_t i = 0; !ended; i = (i + 4099) % first_pages) {
        check(first, i, 1);
        read_of_first++;
    }
    return none;
}

static void *read_last(void *none)
{
    for (size_t i = 0; i < last_pages; i++)
        check(last, i * 4099 % last_pages, 2);
    printf("%zu\n", (size_t)read_of_first);
    fflush(stdout);
    return none;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        errx(2, "usage: two_places MB MB");
    first_pages = strtoul(argv[1], NULL, 10) * 256;
    last_pages = strtoul(argv[2], NULL, 10) * 256;
    first = aligned_alloc(4096, first_pages * 4096);
    last = aligned_alloc(4096, last_pages * 4096);
    if (!first || !last)
        err(1, "no memory");
    fill(first, first_pages, 1);
    fill(last, last_pages, 2);
    puts("full");
    fflush(stdout);
    getchar();
    pthread_t one, other;
    if (pthread_create(&one, NULL, read_first, NULL) != 0 || pthread_create(&other, NULL, read_last, NULL) != 0)
        errx(1, "no threads");
    getchar();
    pthread_join(other, NULL);
    ended = 1;
    pthread_join(one, NULL);
    puts("right");
    return 0;
}

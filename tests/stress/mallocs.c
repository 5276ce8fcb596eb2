/* Asks the allocator for some MiB again and again, in every way there is, and fills them at once. Each is a mapping of its own,
 * made by system calls that nobody sees, and all of its pages have to be served by the engine.
 *
 *     mallocs MANAGED_MB PIECE_MB ROUNDS
 *
 * Prints how many pages were filled, and waits for the end of its input. */
#define _GNU_SOURCE
#include <err.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096 };

static size_t size;

static void *by_malloc(void)
{
	return malloc(size);
}

static void *by_calloc(void)
{
	return calloc(size / 64, 64);
}

static void *by_realloc(void)
{
	/* Of the heap, so it moves to a mapping. */
	return realloc(malloc(100), size);
}

static void *by_memalign(void)
{
	return memalign(64, size);
}

static void *by_aligned_alloc(void)
{
	return aligned_alloc(PAGE, size);
}

static void *by_posix_memalign(void)
{
	void *p;
	return posix_memalign(&p, 2 << 20, size) ? NULL : p;
}

static void *(*const ways[])(void) = {
	by_malloc, by_calloc, by_realloc, by_memalign, by_aligned_alloc, by_posix_memalign,
};

int main(int argc, char **argv)
{
	enum { WAYS = sizeof ways / sizeof *ways };
	if (argc != 4)
		errx(2, "usage: mallocs MANAGED_MB PIECE_MB ROUNDS");
	/* Else the threshold follows what is freed, and pieces come from the heap. */
	mallopt(M_MMAP_THRESHOLD, 128 << 10);
	size_t much = (size_t)atoi(argv[1]) << 20, filled = 0;
	char *managed = malloc(much);
	memset(managed, 1, much); /* from here on memory is managed */
	size = (size_t)atoi(argv[2]) << 20;
	for (int i = 0; i < atoi(argv[3]) * WAYS; i++) {
		char *p = ways[i % WAYS]();
		if (!p)
			err(2, "no memory");
		memset(p, 2, size);
		filled += size / PAGE;
		if (p[0] != 2 || p[size - 1] != 2 || managed[i * PAGE % much] != 1)
			errx(1, "wrong bytes");
		free(p);
	}
	printf("%zu\n", filled);
	fflush(stdout);
	getchar();
}

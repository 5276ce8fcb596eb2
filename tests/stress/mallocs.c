/* Asks the allocator for some MiB again and again, in one of the ways there are, and fills them at once. What it maps
 * for that, by system calls that nobody sees, has to be served by the engine from the first page on.
 *
 *     mallocs WAY MANAGED_MB PIECE_MB ROUNDS
 *
 * Without a WAY: prints the names of all. When memory is managed it says "ready" and waits for a line; at the end it
 * prints how many pages were filled since, and waits for the end of its input. */
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

static void *by_valloc(void)
{
	return valloc(size);
}

static void *by_pvalloc(void)
{
	return pvalloc(size);
}

static void *by_growing(void)
{
	/* At the end of the heap, which grows: it stays where it is. */
	return realloc(malloc(100 << 10), size);
}

static const struct {
	const char *name;
	void *(*take)(void);
} ways[] = {
	{"malloc", by_malloc},
	{"calloc", by_calloc},
	{"realloc", by_realloc},
	{"memalign", by_memalign},
	{"aligned_alloc", by_aligned_alloc},
	{"posix_memalign", by_posix_memalign},
	{"valloc", by_valloc},
	{"pvalloc", by_pvalloc},
	{"growing", by_growing},
};

int main(int argc, char **argv)
{
	enum { WAYS = sizeof ways / sizeof *ways };
	int way = 0;
	if (argc == 1) {
		for (int i = 0; i < WAYS; i++)
			puts(ways[i].name);
		return 0;
	}
	while (way < WAYS && strcmp(argv[1], ways[way].name))
		way++;
	if (argc != 5 || way == WAYS)
		errx(2, "usage: mallocs WAY MANAGED_MB PIECE_MB ROUNDS");
	/* Else the threshold follows what is freed. */
	mallopt(M_MMAP_THRESHOLD, ways[way].take == by_growing ? 32 << 20 : 128 << 10);
	mallopt(M_TRIM_THRESHOLD, 128 << 10);
	size_t much = (size_t)atoi(argv[2]) << 20, filled = 0;
	char *managed = malloc(much);
	memset(managed, 1, much); /* from here on memory is managed */
	size = (size_t)atoi(argv[3]) << 20;
	puts("ready");
	fflush(stdout);
	getchar();
	for (int i = 0; i < atoi(argv[4]); i++) {
		char *p = ways[way].take();
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
	while (getchar() != EOF)
		;
}

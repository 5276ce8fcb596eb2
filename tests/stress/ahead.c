/* Memory that changes right behind a sequential reader, where a swapper has read, or is reading, the old content in
 * advance.
 *
 *     ahead MB ROUNDS [WORDS]
 *
 * Each round reads a region in order up to some page, then replaces the pages behind it (discards and writes them, maps
 * anew, or moves other pages there), touches enough other memory at random to have them swapped out, and reads on.
 * Every page must have the content it was given last. Run it with much less memory than MB. WORDS: so many of a page
 * do not compress (512: all). */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { PAGE = 4096, WORDS = PAGE / 8, BEHIND = 96 };

static uint64_t state = 88172645463325252ull;

static uint64_t next(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

/* Words that differ: all, so the pages go to a file; or few, so that they can be compressed. */
static int differ = WORDS;

static void fill(uint64_t *page, uint64_t tag)
{
	uint64_t x = tag * 0x9e3779b97f4a7c15ull | 1;
	page[0] = tag;
	for (int i = 1; i < differ; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		page[i] = x;
	}
}

static int is_filled(const uint64_t *page, uint64_t tag)
{
	uint64_t x = tag * 0x9e3779b97f4a7c15ull | 1;
	if (page[0] != tag)
		return 0;
	for (int i = 1; i < differ; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		if (page[i] != x)
			return 0;
	}
	for (int i = differ; i < WORDS; i++)
		if (page[i] != 0)
			return 0;
	return 1;
}

static void *map(void *at, size_t len)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0);
	void *p = mmap(at, len, PROT_READ | PROT_WRITE, flags, -1, 0);
	if (p == MAP_FAILED) {
		perror("mmap");
		exit(2);
	}
	return p;
}

int main(int argc, char **argv)
{
	size_t pages = (argc > 1 ? atol(argv[1]) : 64) * 256 / 2;
	long rounds = argc > 2 ? atol(argv[2]) : 100;
	if (argc > 3 && atoi(argv[3]) < WORDS)
		differ = atoi(argv[3]);
	uint64_t *read = map(NULL, pages * PAGE), *other = map(NULL, pages * PAGE);
	uint64_t *tags = calloc(pages, sizeof *tags);
	uint64_t tag = 0;
	long wrong = 0;

	for (size_t i = 0; i < pages; i++) {
		fill(read + i * WORDS, tags[i] = ++tag);
		fill(other + i * WORDS, ~(uint64_t)i);
	}
	for (long round = 0; round < rounds; round++) {
		size_t edge = 256 + next() % (pages - 256 - BEHIND), from = edge - 256;
		for (size_t i = from; i < edge; i++)
			wrong += !is_filled(read + i * WORDS, tags[i]);
		char *behind = (char *)(read + edge * WORDS);
		switch (round % 3) {
		case 0:
			if (madvise(behind, BEHIND * PAGE, MADV_DONTNEED))
				perror("madvise");
			break;
		case 1:
			map(behind, BEHIND * PAGE);
			break;
		default: {
			void *fresh = map(NULL, BEHIND * PAGE);
			*(volatile char *)fresh = 0;
			if (mremap(fresh, BEHIND * PAGE, BEHIND * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, behind) == MAP_FAILED)
				perror("mremap");
		}
		}
		for (size_t i = edge; i < edge + BEHIND; i++)
			fill(read + i * WORDS, tags[i] = ++tag);
		for (size_t i = 0; i < pages; i++) {
			size_t at = next() % pages;
			if (other[at * WORDS] != ~(uint64_t)at)
				wrong++;
		}
		for (size_t i = edge; i < edge + BEHIND; i++)
			wrong += !is_filled(read + i * WORDS, tags[i]);
	}
	printf("%ld pages wrong\n", wrong);
	return wrong != 0;
}

/* Goes through memory in one way or another, and checks each page.
 *
 *     patterns PATTERN MB PASSES
 *
 * up, down, stride (every 7th page, seven times), order (the same jumps in each pass; the pages are written to),
 * several (six streams up and two down at once), random, runs (of 12 pages, at random places), threads (eight at once,
 * each in order through pages of its own, with pages at random between), ends (in order through the middle one of three
 * mappings; prints how many pages of the others have come into memory by that). */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, STREAMS = 8, STRIDE = 7 };

static uint64_t *memory;
static size_t pages;
static long passes;

static uint64_t mix(uint64_t x)
{
	x = (x + 1) * 0x9e3779b97f4a7c15ull;
	x ^= x >> 32;
	x *= 0xd6e8feb86659fd93ull;
	return x ^ x >> 32;
}

static void check(size_t page)
{
	if (memory[page * WORDS] != mix(page) || memory[page * WORDS + WORDS - 1] != mix(~page)) {
		printf("page %zu is wrong\n", page);
		exit(1);
	}
}

static void *map(size_t n)
{
	void *p = mmap(NULL, n * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED) {
		perror("mmap");
		exit(2);
	}
	return p;
}

static void *in_order(void *arg)
{
	size_t part = pages / STREAMS, first = (size_t)arg * part;
	for (size_t i = 0; i < part; i++) {
		check(first + i);
		if (i % 4 == 0)
			check(mix(i ^ first << 20) % pages);
	}
	return NULL;
}

static void pass(const char *pattern)
{
	size_t part = pages / STREAMS;
	if (!strcmp(pattern, "up")) {
		for (size_t i = 0; i < pages; i++)
			check(i);
	} else if (!strcmp(pattern, "down")) {
		for (size_t i = pages; i-- > 0;)
			check(i);
	} else if (!strcmp(pattern, "stride")) {
		for (size_t from = 0; from < STRIDE; from++)
			for (size_t i = from; i < pages; i += STRIDE)
				check(i);
	} else if (!strcmp(pattern, "runs")) {
		static uint64_t at;
		for (size_t i = 0; i < pages; i++)
			check(((mix(at + i / 12) % pages) + i % 12) % pages);
		at += pages;
	} else if (!strcmp(pattern, "several")) {
		for (size_t i = 0; i < part; i++)
			for (size_t s = 0; s < STREAMS; s++)
				check(s * part + (s < 6 ? i : part - 1 - i));
	} else if (!strcmp(pattern, "random")) {
		static uint64_t at;
		for (size_t i = 0; i < pages; i++)
			check(mix(at++) % pages);
	} else if (!strcmp(pattern, "order")) {
		for (size_t i = 0, page = 0; i < pages; i++, page = (page * 1597 + 51749) % pages) {
			check(page);
			memory[page * WORDS + 1]++;
		}
	} else if (!strcmp(pattern, "threads")) {
		pthread_t threads[STREAMS];
		for (size_t i = 0; i < STREAMS; i++)
			if (pthread_create(&threads[i], NULL, in_order, (void *)i))
				exit(2);
		for (size_t i = 0; i < STREAMS; i++)
			pthread_join(threads[i], NULL);
	} else {
		fprintf(stderr, "there is no %s\n", pattern);
		exit(2);
	}
}

static size_t present(char *at, size_t n)
{
	unsigned char *is = malloc(n);
	size_t found = 0;
	if (!is || mincore(at, n * PAGE, is)) {
		perror("mincore");
		exit(2);
	}
	for (size_t i = 0; i < n; i++)
		found += is[i] & 1;
	free(is);
	return found;
}

int main(int argc, char **argv)
{
	if (argc < 4) {
		fprintf(stderr, "patterns PATTERN MB PASSES\n");
		return 2;
	}
	int ends = !strcmp(argv[1], "ends");
	pages = atol(argv[2]) * 256;
	passes = atol(argv[3]);
	memory = map(pages);
	for (size_t i = 0; i < pages; i++) {
		memory[i * WORDS] = mix(i);
		memory[i * WORDS + WORDS - 1] = mix(~i);
		/* Not all done before anybody has looked at how much it is. */
		if (i % 64 == 0)
			usleep(1000);
	}
	if (ends) {
		size_t third = pages / 3;
		char *one = (char *)memory, *two = one + third * PAGE, *three = two + third * PAGE;
		/* One page between them is gone. */
		munmap(two - PAGE, PAGE);
		munmap(three - PAGE, PAGE);
		size_t before = present(one, third - 1) + present(three, third);
		for (long n = 0; n < passes; n++) {
			for (size_t i = third; i < 2 * third - 1; i++)
				check(i);
			for (size_t i = 2 * third - 1; i-- > third;)
				check(i);
		}
		size_t after = present(one, third - 1) + present(three, third);
		printf("%zu\n", after > before ? after - before : 0);
		return 0;
	}
	for (long n = 0; n < passes; n++)
		pass(argv[1]);
	return 0;
}

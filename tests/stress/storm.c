/* Threads that are given memory piece by piece and fill it at once, from the program's first millisecond on. At the end
 * it is looked at.
 *
 *     storm mmap|malloc THREADS TOTAL_MB [SEED]
 *
 * Prints "ok". */
#define _GNU_SOURCE
#include <err.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, WORDS_APART = 8 };

struct piece {
	struct piece *before;
	size_t words;
	uint64_t word[];
};

static size_t each;
static uint64_t seed;
static struct piece *(*take)(size_t bytes);

static uint64_t next(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static struct piece *by_malloc(size_t bytes)
{
	return malloc(bytes);
}

static struct piece *by_mmap(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return p == MAP_FAILED ? NULL : p;
}

static void *fill(void *arg)
{
	uint64_t state = seed * 0x9e3779b97f4a7c15 + (uintptr_t)arg + 1;
	struct piece *last = NULL;
	for (size_t have = 0; have < each;) {
		size_t bytes = PAGE / 2 + next(&state) % (32 * PAGE);
		struct piece *p = take(bytes);
		if (!p)
			err(2, "no memory");
		*p = (struct piece){.before = last, .words = (bytes - sizeof *p) / sizeof *p->word};
		for (size_t i = 0; i < p->words; i += WORDS_APART)
			p->word[i] = (uintptr_t)&p->word[i] ^ seed;
		last = p;
		have += bytes;
	}
	for (struct piece *p = last; p; p = p->before)
		for (size_t i = 0; i < p->words; i += WORDS_APART)
			if (p->word[i] != ((uintptr_t)&p->word[i] ^ seed))
				errx(1, "%p has %lx", (void *)&p->word[i], p->word[i]);
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc < 4)
		errx(2, "usage: storm mmap|malloc THREADS TOTAL_MB [SEED]");
	take = strcmp(argv[1], "mmap") ? by_malloc : by_mmap;
	size_t threads = strtoul(argv[2], NULL, 10);
	seed = argc > 4 ? strtoull(argv[4], NULL, 10) : 1;
	each = (strtoul(argv[3], NULL, 10) << 20) / threads;
	pthread_t *thread = calloc(threads, sizeof *thread);
	for (size_t i = 0; i < threads; i++)
		if (pthread_create(&thread[i], NULL, fill, (void *)i))
			errx(2, "no thread");
	for (size_t i = 0; i < threads; i++)
		pthread_join(thread[i], NULL);
	puts("ok");
}

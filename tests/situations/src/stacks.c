/*
 * stacks MIB [wait]: forks of a process whose other threads have ended. Libc keeps the stacks of such threads, and
 * writes to their control blocks in a forked child before any handler runs there. So they have to be in memory.
 *
 * A thread forks while the process is small. The child fills MIB, which is more than its budget, and forks again; the
 * grandchild looks whether all is there. With `wait` there is one fork less, and the process is filled when a line was
 * read: by then it is attached to.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 12
#define PAGE 4096

static pthread_barrier_t all_run;
static size_t pages;
static int waits;

static void fail(const char *what)
{
	fprintf(stderr, "stacks: %s\n", what);
	_exit(1);
}

static void forks(void (*in_child)(void))
{
	int status;
	pid_t child = fork();

	if (child < 0)
		fail("fork");
	if (child == 0) {
		in_child();
		_exit(0);
	}
	if (waitpid(child, &status, 0) != child || status != 0)
		fail("a child did not end well");
}

static uint64_t *filled;

static void look(void)
{
	for (size_t page = 0; page < pages; page++)
		if (filled[page * PAGE / sizeof(*filled)] != page * 0x9e3779b97f4a7c15)
			fail("a page is wrong");
}

static void fill_and_fork(void)
{
	filled = malloc(pages * PAGE);
	if (!filled)
		fail("malloc");
	for (int round = 0; round < 2; round++)
		for (size_t page = 0; page < pages; page++) {
			uint64_t *at = filled + page * PAGE / sizeof(*filled);
			uint64_t seed = page * 0x9e3779b97f4a7c15;

			for (size_t i = 0; i < PAGE / sizeof(*at); i++)
				at[i] = seed ^ (i * i * 0x2545f4914f6cdd1d);
		}
	forks(look);
	look();
	free(filled);
}

static void *ends(void *nothing)
{
	pthread_barrier_wait(&all_run);
	return nothing;
}

static void *stays(void *nothing)
{
	pthread_barrier_wait(&all_run);
	/* The others have ended soon, and their stacks are kept. */
	usleep(100000);
	if (waits) {
		char line[16];

		puts("ready");
		fflush(stdout);
		if (!fgets(line, sizeof(line), stdin))
			fail("no line");
		fill_and_fork();
	} else {
		forks(fill_and_fork);
	}
	return nothing;
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS], last;

	if (argc < 2)
		return 2;
	pages = (size_t)atoi(argv[1]) << 8;
	waits = argc > 2;
	pthread_barrier_init(&all_run, NULL, THREADS + 1);
	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, ends, NULL))
			fail("pthread_create");
	if (pthread_create(&last, NULL, stays, NULL))
		fail("pthread_create");
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	pthread_join(last, NULL);
	puts("right");
	return 0;
}

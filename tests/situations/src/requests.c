/* requests WORKERS MB COUNT: workers with a working set of MB MiB each answer requests, one after the other: each goes
 * over the whole of it several times, and checks it. Ends when each worker has answered COUNT. Prints whether all was
 * right, and how many requests one of the others has answered at most while one was being answered. */
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64 };

struct shared {
	long answered[MOST], longest[MOST];
	double slowest[MOST];
};

static double now(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static unsigned word(long page, int worker)
{
	return page * 2654435761u + worker;
}

static int is_wrong(unsigned *memory, long pages, int worker)
{
	for (long i = 0; i < pages; i++)
		if (memory[i * 1024] != word(i, worker))
			return 1;
	return 0;
}

static int work(struct shared *s, int worker, int workers, long pages, long count)
{
	unsigned *memory = malloc(pages * 4096);
	for (long i = 0; i < pages; i++)
		memory[i * 1024] = word(i, worker);
	for (int all = 0; !all;) {
		long before[MOST];
		for (int i = 0; i < workers; i++)
			before[i] = __atomic_load_n(&s->answered[i], __ATOMIC_RELAXED);
		double since = now(CLOCK_MONOTONIC);
		/* A tenth of a second of its own time. */
		for (double end = now(CLOCK_THREAD_CPUTIME_ID) + 0.1; now(CLOCK_THREAD_CPUTIME_ID) < end;)
			if (is_wrong(memory, pages, worker))
				return 1;
		__atomic_add_fetch(&s->answered[worker], 1, __ATOMIC_RELAXED);
		all = 1;
		for (int i = 0; i < workers; i++) {
			long is = __atomic_load_n(&s->answered[i], __ATOMIC_RELAXED);
			if (i != worker && is - before[i] > s->longest[worker])
				s->longest[worker] = is - before[i];
			all &= is >= count;
		}
		double took = now(CLOCK_MONOTONIC) - since;
		s->slowest[worker] = took > s->slowest[worker] ? took : s->slowest[worker];
	}
	return 0;
}

int main(int argc, char **argv)
{
	if (argc < 4 || atoi(argv[1]) > MOST)
		errx(2, "usage: requests WORKERS MB COUNT");
	int workers = atoi(argv[1]), bad = 0, status;
	long pages = atol(argv[2]) * 256, longest = 0;
	double slowest = 0;
	struct shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pids[MOST];
	for (int i = 0; i < workers; i++) {
		pids[i] = fork();
		if (pids[i] < 0)
			err(2, "fork");
		if (pids[i] == 0)
			_exit(work(s, i, workers, pages, atol(argv[3])));
	}
	for (int i = 0; i < workers; i++) {
		bad |= waitpid(pids[i], &status, 0) != pids[i] || status;
		longest = s->longest[i] > longest ? s->longest[i] : longest;
		slowest = s->slowest[i] > slowest ? s->slowest[i] : slowest;
	}
	printf("%s %ld\n", bad ? "wrong" : "right", longest);
	if (getenv("VERBOSE")) {
		for (int i = 0; i < workers; i++)
			fprintf(stderr, "%ld answered, others %ld, slowest %.2f s\n", s->answered[i], s->longest[i], s->slowest[i]);
	}
	return bad;
}

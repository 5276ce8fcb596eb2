/* prefork MB WORKERS LIMIT [LIVES [OWN]]: a parent that has MB MiB forks workers that write a word in each of its
 * pages, as reference counts are written, and then wait. Prints what the workers found when all of them together with
 * the parent have LIMIT MiB of anonymous memory at most, each page counted once; what they have then is theirs, so that
 * must come about by itself. With LIVES the parent forks so many children first that end at once. With OWN each worker
 * has so many MiB of its own instead, and goes over the first of them all the time. */
#include "anonymous.h"
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct shared {
	int done;
	int end;
};

static unsigned word(long page, int worker)
{
	return page * 2654435761u + worker;
}

static void fill(unsigned *memory, long pages)
{
	for (long i = 0; i < pages; i++)
		memory[i * 1024] = memory[i * 1024 + 1] = word(i, 0);
}

static int work(unsigned *memory, long pages, long hot, int worker, struct shared *shared)
{
	for (long i = 0; i < pages; i++) {
		if (memory[i * 1024 + 1] != word(i, 0))
			return 1;
		memory[i * 1024] = word(i, worker);
	}
	__atomic_add_fetch(&shared->done, 1, __ATOMIC_SEQ_CST);
	while (!__atomic_load_n(&shared->end, __ATOMIC_SEQ_CST)) {
		for (long i = 0; i < hot; i++)
			if (memory[i * 1024] != word(i, worker))
				return 3;
		usleep(2000);
	}
	for (long i = 0; i < pages; i++)
		if (memory[i * 1024] != word(i, worker) || memory[i * 1024 + 1] != word(i, 0))
			return 2;
	return 0;
}

static int is_bad(pid_t pid)
{
	int status;
	return waitpid(pid, &status, 0) != pid || status;
}

int main(int argc, char **argv)
{
	if (argc < 4)
		errx(2, "usage: prefork MB WORKERS LIMIT [LIVES [OWN]]");
	long pages = atol(argv[1]) * 256, limit = atol(argv[3]) * 1024, own = argc > 5 ? atol(argv[5]) * 256 : 0, sum;
	int workers = atoi(argv[2]), lives = argc > 4 ? atoi(argv[4]) : 0, bad = 0;
	struct shared *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	unsigned *memory = malloc(pages * 4096);
	pid_t *pids = calloc(workers, sizeof *pids);
	fill(memory, pages);
	for (int i = 0; i < lives; i++) {
		pid_t pid = fork();
		if (pid == 0)
			_exit(0);
		bad |= is_bad(pid);
	}
	for (int i = 0; i < workers; i++) {
		pids[i] = fork();
		if (pids[i] < 0)
			err(2, "fork");
		if (pids[i] == 0 && own) {
			memory = malloc(own * 4096);
			fill(memory, own);
			_exit(work(memory, own, 256, i + 1, shared));
		}
		if (pids[i] == 0)
			_exit(work(memory, pages, 0, i + 1, shared));
	}
	do {
		int all = __atomic_load_n(&shared->done, __ATOMIC_SEQ_CST) == workers;
		usleep(20000);
		sum = all ? anonymous(getpid()) : limit + 1;
		for (int i = 0; i < workers && all; i++)
			sum += anonymous(pids[i]);
	} while (sum > limit);
	__atomic_store_n(&shared->end, 1, __ATOMIC_SEQ_CST);
	for (int i = 0; i < workers; i++)
		bad |= is_bad(pids[i]);
	puts(bad ? "wrong" : "right");
	return bad;
}

/* floor WORKERS MB EACH SUM BUSY: forks workers that fill MB MiB each and then wait for a word from their parent, which
 * fills BUSY MiB of its own, if any, and goes over them until no worker has more than EACH KiB of anonymous memory, and
 * all together with the parent SUM MiB at most, each page counted once. That must come about by itself. Then each finds
 * its memory as it was. */
#include "anonymous.h"
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS = 1024 };

static unsigned word(long i, int owner)
{
	return (i % 3 ? i : i * 2654435761u) + owner;
}

static void fill(unsigned *memory, long pages, int owner)
{
	for (long i = 0; i < pages * WORDS; i++)
		memory[i] = word(i, owner);
}

static int is_right(const unsigned *memory, long pages, int owner)
{
	for (long i = 0; i < pages * WORDS; i++)
		if (memory[i] != word(i, owner))
			return 0;
	return 1;
}

int main(int argc, char **argv)
{
	if (argc < 6)
		errx(2, "usage: floor WORKERS MB EACH SUM BUSY");
	int workers = atoi(argv[1]), said[2], go[2], bad = 0, is_over, status;
	long pages = atol(argv[2]) * 256, each = atol(argv[3]), most = atol(argv[4]) * 1024, busy = atol(argv[5]) * 256, sum;
	pid_t *pids = calloc(workers, sizeof *pids);
	char c = 0;
	if (!pids || pipe(said) || pipe(go))
		err(2, "start");
	for (int i = 0; i < workers; i++) {
		pids[i] = fork();
		if (pids[i] < 0)
			err(2, "fork");
		if (pids[i])
			continue;
		close(go[1]);
		unsigned *memory = malloc(pages * 4096);
		fill(memory, pages, i + 1);
		if (write(said[1], &c, 1) != 1 || read(go[0], &c, 1))
			_exit(2);
		_exit(!is_right(memory, pages, i + 1));
	}
	for (int i = 0; i < workers; i++)
		if (read(said[0], &c, 1) != 1)
			err(2, "read");
	unsigned *memory = malloc(busy * 4096 + 1);
	fill(memory, busy, 0);
	do {
		bad |= !is_right(memory, busy, 0);
		if (!busy)
			usleep(100000);
		sum = anonymous(getpid());
		is_over = 0;
		for (int i = 0; i < workers && !is_over; i++) {
			long has = anonymous(pids[i]);
			is_over = has > each;
			sum += has;
		}
	} while (is_over || sum > most);
	close(go[1]);
	for (int i = 0; i < workers; i++)
		bad |= waitpid(pids[i], &status, 0) != pids[i] || status;
	puts(bad ? "wrong" : "right");
	return bad;
}

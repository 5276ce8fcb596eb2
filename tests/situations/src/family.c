/* family MB CHILDREN [stays]: a parent that has MB MiB forks children, prints their process ids, and goes over other
 * memory until a line comes. Then it ends, or it stays and waits for the children. These go over all of what the parent
 * had then, and a child of each once more. Each prints "right" or "wrong". */
#include <err.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS = 512 };

/* Most pages can be compressed to some bytes. */
static unsigned long word(long page, int i)
{
	unsigned long x = page * 0x9e3779b97f4a7c15 + (page % 8 && i >= 8 ? 7 : i * 0xbf58476d1ce4e5b9);
	return (x ^ x >> 29) * 0x94d049bb133111eb;
}

static int is_right(const unsigned long *memory, long pages)
{
	for (long page = 0; page < pages; page++)
		for (int i = 0; i < WORDS; i++)
			if (memory[page * WORDS + i] != word(page, i))
				return 0;
	return 1;
}

static int is_bad(pid_t pid)
{
	int status;
	return waitpid(pid, &status, 0) != pid || status;
}

static void child(const unsigned long *memory, long pages, int life)
{
	if (read(life, &(char){0}, 1) != 0)
		err(2, "read");
	int right = is_right(memory, pages);
	pid_t pid = fork();
	if (pid == 0)
		_exit(!is_right(memory, pages));
	right &= !is_bad(pid);
	puts(right ? "right" : "wrong");
	fflush(stdout);
	_exit(!right);
}

int main(int argc, char **argv)
{
	if (argc < 3)
		errx(2, "usage: family MB CHILDREN [stays]");
	long pages = atol(argv[1]) * 256;
	int children = atoi(argv[2]), life[2], bad = 0;
	unsigned long *memory = malloc(pages * 4096);
	for (long page = 0; page < pages; page++)
		for (int i = 0; i < WORDS; i++)
			memory[page * WORDS + i] = word(page, i);
	if (pipe(life))
		err(2, "pipe");
	pid_t *pids = calloc(children, sizeof *pids);
	for (int i = 0; i < children; i++) {
		pids[i] = fork();
		if (pids[i] < 0)
			err(2, "fork");
		if (pids[i] == 0) {
			close(life[1]);
			child(memory, pages, life[0]);
		}
	}
	for (int i = 0; i < children; i++)
		printf("%d ", pids[i]);
	puts("");
	fflush(stdout);
	struct pollfd line = {.fd = 0, .events = POLLIN};
	char *more = malloc(pages * 2048);
	for (long i = 0; !poll(&line, 1, 0); i++)
		more[i % pages * 2048] = i;
	if (argc == 3)
		_exit(0);
	close(life[1]);
	for (int i = 0; i < children; i++)
		bad |= is_bad(pids[i]);
	puts(bad ? "wrong" : "right");
	return bad;
}

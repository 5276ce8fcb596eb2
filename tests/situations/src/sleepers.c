/* sleepers N MB [KIB [UNSEEN]]: forks N children that sleep, then fills MB MiB, and waits until all of that is in
 * memory at once.
 * With KIB the children fill so many KiB each before they sleep, and the parent waits for their end. With a word more
 * it makes them by system call instructions of its own, after it has filled its MB. */
#include <err.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static long resident(void)
{
	long all = 0, shared = 0;
	FILE *file = fopen("/proc/self/statm", "r");
	if (!file || fscanf(file, "%*d %ld %ld", &all, &shared) != 2)
		err(2, "statm");
	fclose(file);
	return all - shared;
}

static pid_t forked_unseen(void)
{
	long made = SYS_fork;
	__asm__ volatile("syscall" : "+a"(made) : : "rcx", "r11", "memory");
	return made;
}

int main(int argc, char **argv)
{
	if (argc < 3)
		errx(2, "usage: sleepers N MB [KIB [UNSEEN]]");
	int n = atoi(argv[1]);
	long pages = atol(argv[2]) * 256;
	pid_t *pids = calloc(n, sizeof *pids);
	if (argc > 4)
		explicit_bzero(malloc(pages * 4096), pages * 4096);
	for (int i = 0; i < n; i++) {
		pids[i] = argc > 4 ? forked_unseen() : fork();
		if (pids[i] < 0)
			err(2, "fork");
		if (pids[i] == 0 && argc > 3)
			explicit_bzero(malloc(atol(argv[3]) * 1024), atol(argv[3]) * 1024);
		while (pids[i] == 0)
			pause();
	}
	if (argc > 3)
		return wait(NULL) < 0;
	volatile long *memory = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	do {
		for (long i = 0; i < pages; i++)
			memory[i * 512] = i;
		usleep(10000);
	} while (resident() < pages);
	for (int i = 0; i < n; i++)
		kill(pids[i], SIGKILL);
	while (wait(NULL) > 0)
		;
	puts("ok");
	return 0;
}

/*
 * A defect of the kernel (seen in 6.18; the code is older), shown without farpage: MADV_FREE in one process loses
 * memory of another one, if the kernel swaps to memory (zram, pmem).
 *
 * A page that is swapped in by reading it, from such a device, is clean: neither its page table entry nor the page is
 * marked dirty, and its slot is free again. That is safe as long as the page counts as backed by swap. After a fork it
 * is shared; MADV_FREE in one of the two processes looks only at marks that this page does not have, finds nothing
 * against it, and declares the page droppable, for both. The next reclaim drops it, and the other process reads zeros.
 *
 *   cc -O1 -o /tmp/free_after_fork tests/kernel/free_after_fork.c
 *   echo 64M > /sys/block/zram0/disksize; mkswap /dev/zram0; swapon -p 100 /dev/zram0
 *   /tmp/free_after_fork        # "256 of 256 pages of the child are wrong" where the defect is
 *   swapoff /dev/zram0; echo 1 > /sys/block/zram0/reset
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096L
#define PAGES 256L

static char content(long page)
{
	return (char)(1 + page % 100);
}

int main(void)
{
	int go[2], status;
	volatile char sum = 0;
	char word = 0;
	char *p = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED || pipe(go)) {
		perror("free_after_fork");
		return 2;
	}
	madvise(p, PAGES * PAGE, MADV_NOHUGEPAGE);
	for (long i = 0; i < PAGES; i++)
		memset(p + i * PAGE, content(i), PAGE);
	madvise(p, PAGES * PAGE, MADV_PAGEOUT);
	for (long i = 0; i < PAGES; i++)
		sum += p[i * PAGE];
	pid_t child = fork();
	if (child == 0) {
		long wrong = 0;

		if (read(go[0], &word, 1) != 1)
			_exit(2);
		madvise(p, PAGES * PAGE, MADV_PAGEOUT);
		for (long i = 0; i < PAGES; i++)
			wrong += p[i * PAGE] != content(i);
		printf("%ld of %ld pages of the child are wrong\n", wrong, PAGES);
		fflush(stdout);
		_exit(wrong != 0);
	}
	madvise(p, PAGES * PAGE, MADV_FREE);
	munmap(p, PAGES * PAGE);
	if (write(go[1], &word, 1) != 1 || waitpid(child, &status, 0) != child)
		return 2;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 2;
}

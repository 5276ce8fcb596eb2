/* A userfaultfd of the program's own, on memory that was filled long ago.
 *
 * Usage: userfaultfd_late MIB ioctl|syscall
 * First it is told of each write to the first half (dirty tracking), then it fills the second half lazily. A quarter of
 * the pages are zero. Other memory is compared at the end. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8 };

static int fd, by_syscall;
static size_t len, told_writes, told_missing, untold;
static char *memory;

static uint64_t word_of(size_t page, size_t i)
{
	return page % 4 ? (page * WORDS + i) * 0x9e3779b97f4a7c15 + 1 : 0;
}

static int request(unsigned long what, void *arg)
{
	return by_syscall ? (int)syscall(SYS_ioctl, fd, what, arg) : ioctl(fd, what, arg);
}

static void need(int ok, const char *what)
{
	if (!ok) {
		printf("%s: %s\n", what, strerror(errno));
		fflush(stdout);
		_exit(1);
	}
}

static void *serve(void *unused)
{
	static char lazy[PAGE];
	struct uffd_msg m;
	while (read(fd, &m, sizeof m) == sizeof m) {
		uint64_t at = m.arg.pagefault.address & ~(uint64_t)(PAGE - 1);
		if (m.arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WP) {
			struct uffdio_writeprotect wp = { .range = { at, PAGE } };
			told_writes++;
			need(!ioctl(fd, UFFDIO_WRITEPROTECT, &wp), "end of protection");
			continue;
		}
		struct uffdio_copy copy = { .dst = at, .src = (uintptr_t)lazy, .len = PAGE };
		for (size_t i = 0; i < WORDS; i++)
			((uint64_t *)lazy)[i] = ~word_of((at - (uintptr_t)memory) / PAGE, i);
		told_missing++;
		need(!ioctl(fd, UFFDIO_COPY, &copy), "copy");
	}
	return unused;
}

static size_t wrong(const char *at, size_t bytes, size_t first, uint64_t inverted)
{
	size_t n = 0;
	for (size_t page = 0; page < bytes / PAGE; page++)
		for (size_t i = 0; i < WORDS; i++)
			n += ((uint64_t *)at)[page * WORDS + i] != (word_of(first + page, i) ^ inverted);
	return n;
}

static char *fill(void)
{
	char *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	madvise(at, len, MADV_NOHUGEPAGE);
	for (size_t i = 0; i < len / 8; i++)
		((uint64_t *)at)[i] = word_of(i / WORDS, i % WORDS);
	return at;
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return fprintf(stderr, "usage: userfaultfd_late MIB ioctl|syscall\n"), 2;
	len = (size_t)atoi(argv[1]) << 20;
	by_syscall = !strcmp(argv[2], "syscall");
	memory = fill();
	char *other = fill();

	fd = syscall(SYS_userfaultfd, O_CLOEXEC);
	need(fd >= 0, "userfaultfd");
	struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_PAGEFAULT_FLAG_WP };
	need(!request(UFFDIO_API, &api), "API");
	pthread_t thread;
	pthread_create(&thread, NULL, serve, NULL);

	size_t half = len / 2, pages = half / PAGE;
	struct uffdio_register writes = { .range = { (uintptr_t)memory, half }, .mode = UFFDIO_REGISTER_MODE_WP };
	need(!request(UFFDIO_REGISTER, &writes), "register for writes");
	struct uffdio_writeprotect wp = { .range = writes.range, .mode = UFFDIO_WRITEPROTECT_MODE_WP };
	need(!request(UFFDIO_WRITEPROTECT, &wp), "write-protect");
	size_t bad = wrong(memory, half, 0, 0);
	for (size_t page = 0; page < pages; page++) {
		size_t before = told_writes;
		*(volatile char *)(memory + page * PAGE) ^= 0;
		untold += *(volatile size_t *)&told_writes == before;
	}
	bad += wrong(memory, half, 0, 0);

	char *lazy = memory + half;
	struct uffdio_register missing = { .range = { (uintptr_t)lazy, half }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	need(!request(UFFDIO_REGISTER, &missing), "register for absent pages");
	for (size_t page = 1; page < pages; page += 4)
		need(!madvise(lazy + page * PAGE, PAGE, MADV_DONTNEED), "madvise");
	for (size_t page = 0; page < pages; page++)
		if (page % 4)
			bad += wrong(lazy + page * PAGE, PAGE, pages + page, page % 4 == 1 ? ~0ull : 0);

	need(!request(UFFDIO_UNREGISTER, &writes.range), "unregister");
	bad += wrong(memory, half, 0, 0) + wrong(other, len, 0, 0);
	printf("wrong words: %zu, writes not told: %zu of %zu, filled lazily: %zu of %zu\n", bad, untold, pages, told_missing, pages / 4);
	return bad || untold || told_missing != pages / 4;
}

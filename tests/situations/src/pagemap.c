/* A pool that clears only those of its pages that the kernel says have been used. What it does not find keeps its old
 * content.
 *
 * Usage: pagemap MIB HOW WHEN WHAT
 * HOW the pagemap is opened: open, openat, fopen, syscall, task (by the number of the thread); or "parent": somebody
 * else's, and all pages are cleared
 * WHEN: early (before anything is filled) or late
 * WHAT is asked for: used (present or swapped), written (present and written, as wasmtime does), words (read from the
 * file)
 *
 * Meanwhile another thread goes over memory of its own and compares each word. Afterwards a child does. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PRESENT = 8, SWAPPED = 16, WRITTEN = 2 };

struct region { uint64_t start, end, categories; };
struct scan {
	uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, inverted, mask, any_of, returned;
};

static uint64_t *pool, *own;
static size_t words;
static volatile int over;
static size_t wrong;

static uint64_t word_of(size_t i)
{
	return i * 0x9e3779b97f4a7c15 + 1;
}

static size_t wrong_words(void)
{
	size_t n = 0;
	for (size_t i = 0; i < words / 4; i++)
		n += own[i] != word_of(i);
	return n;
}

static void *compare(void *unused)
{
	do
		wrong += wrong_words();
	while (!over);
	return unused;
}

static int open_it(const char *how)
{
	char path[64];
	if (!strcmp(how, "open"))
		return open("/proc/self/pagemap", O_RDONLY);
	if (!strcmp(how, "openat"))
		return openat(open("/proc/self", O_PATH | O_DIRECTORY), "pagemap", O_RDONLY);
	if (!strcmp(how, "syscall"))
		return syscall(SYS_openat, AT_FDCWD, "/proc/thread-self/pagemap", O_RDONLY);
	if (!strcmp(how, "fopen")) {
		FILE *file = fopen("/proc/self/pagemap", "r");
		return file ? fileno(file) : -1;
	}
	if (!strcmp(how, "task"))
		snprintf(path, sizeof path, "/proc/%d/task/%d/pagemap", getpid(), gettid());
	else
		snprintf(path, sizeof path, "/proc/%d/pagemap", getppid());
	return open(path, O_RDONLY);
}

static void clear(uint64_t start, uint64_t end)
{
	memset((void *)start, 0, end - start);
}

static int clear_used(int fd, const char *what)
{
	uint64_t from = (uintptr_t)pool, end = from + words * 8;
	if (!strcmp(what, "words")) {
		for (; from < end; from += PAGE) {
			uint64_t word;
			if (pread(fd, &word, 8, from / PAGE * 8) != 8)
				return perror("pread"), 2;
			if (word >> 62)
				clear(from, from + PAGE);
		}
		return 0;
	}
	while (from < end) {
		struct region found[64];
		struct scan scan = { .size = sizeof scan, .start = from, .end = end, .vec = (uintptr_t)found, .vec_len = 64 };
		if (!strcmp(what, "used"))
			scan.any_of = scan.returned = PRESENT | SWAPPED;
		else
			scan.mask = PRESENT | WRITTEN;
		int n = ioctl(fd, _IOWR('f', 16, struct scan), &scan);
		if (n < 0)
			return perror("PAGEMAP_SCAN"), 2;
		for (int i = 0; i < n; i++)
			clear(found[i].start, found[i].end);
		from = scan.walk_end;
	}
	return 0;
}

int main(int argc, char **argv)
{
	if (argc != 5)
		return fprintf(stderr, "usage: pagemap MIB HOW WHEN WHAT\n"), 2;
	size_t len = (size_t)atoi(argv[1]) << 20;
	int early = !strcmp(argv[3], "early"), others = !strcmp(argv[2], "parent");
	words = len / 8;
	int fd = early ? open_it(argv[2]) : -1;
	pool = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	own = mmap(NULL, len / 4, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (size_t i = 0; i < words / 4; i++)
		own[i] = word_of(i);
	for (size_t i = 0; i < words; i++)
		pool[i] = word_of(i);
	pthread_t thread;
	pthread_create(&thread, NULL, compare, NULL);
	if (!early)
		fd = open_it(argv[2]);
	if (fd < 0)
		return perror("pagemap"), 2;
	if (others)
		clear((uintptr_t)pool, (uintptr_t)pool + len);
	else if (clear_used(fd, argv[4]))
		return 2;
	size_t old = 0;
	for (size_t i = 0; i < words; i++)
		old += pool[i] != 0;
	over = 1;
	pthread_join(thread, NULL);
	fflush(stdout);
	int child = fork(), status = 0;
	if (!child)
		_exit(wrong_words() != 0);
	waitpid(child, &status, 0);
	printf("old words: %zu, wrong words: %zu, child: %d\n", old, wrong, status);
	return old || wrong || status;
}

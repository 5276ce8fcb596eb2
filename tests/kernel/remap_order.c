/*
 * What userfaultfd says of mremap, without farpage: the move, and then, as a second event for which the thread waits
 * again, that the old place is unmapped. In between another thread can move something to that place, and its event
 * comes first.
 *
 *   cc -O2 -pthread -o remap_order remap_order.c && ./remap_order
 *
 * Prints the events of three moves, then what comes of two threads; exits with 0 if the kernel behaves as described.
 * Seen on 6.18. (Why it matters: docs/dev/events.md.)
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096ul
#define N (8 * PAGE)

static int ufd;
static char *from, *to, *next;

static void need(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(2);
	}
}

static char *map(int prot)
{
	char *p = mmap(NULL, N, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	need(p != MAP_FAILED, "mmap");
	return p;
}

static char *managed(void)
{
	char *p = map(PROT_READ | PROT_WRITE);
	struct uffdio_register r = { .range = { (unsigned long)p, N }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	need(ioctl(ufd, UFFDIO_REGISTER, &r) == 0, "UFFDIO_REGISTER");
	return p;
}

static void *mover(void *arg)
{
	char **move = arg;
	need(mremap(move[0], N, N, MREMAP_MAYMOVE | MREMAP_FIXED, move[1]) == move[1], "mremap");
	return NULL;
}

/* The next event: its name, and the places it is about. */
static char event(char **a, char **b)
{
	struct uffd_msg m;
	need(read(ufd, &m, sizeof m) == sizeof m, "read");
	if (m.event == UFFD_EVENT_REMAP) {
		*a = (char *)m.arg.remap.from;
		*b = (char *)m.arg.remap.to;
		return 'M';
	}
	*a = (char *)m.arg.remove.start;
	*b = (char *)m.arg.remove.end;
	return m.event == UFFD_EVENT_UNMAP ? 'U' : '?';
}

int main(void)
{
	struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_UNMAP };
	char *a, *b;
	pthread_t one, two;
	int right = 1;

	ufd = syscall(SYS_userfaultfd, O_CLOEXEC);
	need(ufd >= 0, "userfaultfd");
	need(ioctl(ufd, UFFDIO_API, &api) == 0, "UFFDIO_API");

	next = managed();

	/* One thread: the move, then the old place. */
	char *move[2] = { from = managed(), to = map(PROT_NONE) };
	need(pthread_create(&one, NULL, mover, move) == 0, "pthread_create");
	right &= event(&a, &b) == 'M' && a == from && b == to;
	printf("moved %p %p\n", (void *)a, (void *)b);

	/* The second event is not read yet, but the place is free: another thread takes it. */
	usleep(100000);
	char *again[2] = { next, from };
	void *hole = mmap(from, N, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
	need(hole == from, "the old place is not free");
	need(pthread_create(&two, NULL, mover, again) == 0, "pthread_create");
	usleep(100000);
	/* Events of both threads wait now, in the order in which they came to the queue. */
	for (int i = 0; i < 3; i++) {
		char kind = event(&a, &b);
		printf("%s %p %p\n", kind == 'M' ? "moved" : "gone ", (void *)a, (void *)b);
		right &= kind == "UMU"[i] && a == (i < 2 ? (i ? next : from) : next);
	}
	right &= pthread_join(one, NULL) == 0 && pthread_join(two, NULL) == 0;
	printf("%s\n", right ? "as described" : "different");
	return !right;
}

/*
 * What mremap does to a neighbour's registration with userfaultfd, without farpage. A mapping that is moved beside
 * another one is made one with it, if they are alike. Without UFFD_FEATURE_EVENT_REMAP the kernel takes the
 * registration from what was moved, which is the neighbour, too, by then: its absent pages, of which somebody has the
 * content, read as zeros from then on, and nobody is told. With that feature both stay registered.
 *
 *   cc -O2 -pthread -o remap_merge remap_merge.c && ./remap_merge
 *
 * Exits with 0 if the kernel behaves as described. Seen on 6.18. (Why it matters: docs/dev/events.md.)
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096ul
#define N (64 * PAGE)

static sigjmp_buf back;
static int ufd;

static void need(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(2);
	}
}

static void on_fault(int signal)
{
	siglongjmp(back, signal);
}

/* The thread that moves waits until its events have been read. */
static void *read_events(void *unused)
{
	struct uffd_msg message;
	while (read(ufd, &message, sizeof message) == sizeof message)
		;
	return unused;
}

static void manage(char *at)
{
	struct uffdio_register range = { .range = { (uintptr_t)at, N }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	need(ioctl(ufd, UFFDIO_REGISTER, &range) == 0, "UFFDIO_REGISTER");
}

/* A page of a registered mapping is absent, which is a signal to whoever touches it. Another registered mapping is
 * moved in front of that one. Is it a signal still? */
static int still_told(uint64_t features)
{
	pthread_t reader;
	struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_SIGBUS | features };
	ufd = syscall(SYS_userfaultfd, O_CLOEXEC);
	need(ufd >= 0, "userfaultfd");
	need(ioctl(ufd, UFFDIO_API, &api) == 0, "UFFDIO_API");
	need(pthread_create(&reader, NULL, read_events, NULL) == 0, "pthread_create");

	char *pair = mmap(NULL, 2 * N, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *room = mmap(NULL, 2 * N + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	need(pair != MAP_FAILED && room != MAP_FAILED, "mmap");
	madvise(pair, 2 * N, MADV_NOHUGEPAGE);
	memset(pair, 7, 2 * N);
	manage(pair);
	manage(pair + N);

	room += PAGE;
	char *second = mremap(pair + N, N, N, MREMAP_MAYMOVE | MREMAP_FIXED, room + N);
	need(second == room + N, "mremap");
	manage(second);
	need(madvise(second + 5 * PAGE, PAGE, MADV_DONTNEED) == 0, "madvise");
	need(mremap(pair, N, N, MREMAP_MAYMOVE | MREMAP_FIXED, room) == room, "mremap");

	if (sigsetjmp(back, 1))
		return 1;
	volatile char byte = second[5 * PAGE];
	printf("an absent page of the neighbour reads as %d\n", byte);
	return 0;
}

int main(void)
{
	signal(SIGBUS, on_fault);
	int with = still_told(UFFD_FEATURE_EVENT_REMAP);
	int without = still_told(0);
	printf("with UFFD_FEATURE_EVENT_REMAP the neighbour %s registered, without it %s\n", with ? "stays" : "is no longer",
	       without ? "stays so, too" : "is no longer");
	return !(with && !without);
}

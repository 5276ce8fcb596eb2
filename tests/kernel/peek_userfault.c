/*
 * ptrace and /proc/PID/mem on memory that is served through userfaultfd: the kernel does not wait for the page (EIO),
 * whatever serves it. farpage has no part in this program. process_vm_readv waits, and brings the page in; after that
 * the other two work.
 *
 *     cc -O2 -pthread -o /tmp/peek tests/kernel/peek_userfault.c && /tmp/peek    (as root, or with full userfaultfd)
 *
 * Seen on Linux 6.18:
 *     /proc/PID/mem:      Input/output error
 *     PTRACE_PEEKDATA:    Input/output error
 *     process_vm_readv:   42
 *     PTRACE_PEEKDATA:    42
 *
 * Why: both go through access_remote_vm, which looks pages up without being able to give the lock of the address space
 * up; a fault that may not do that is not handed to userfaultfd.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static long page[512] __attribute__((aligned(4096))) = { 42 };
static int uffd;

static void die(const char *what) {
	perror(what);
	exit(2);
}

static void *serve(void *unused) {
	struct uffd_msg msg;
	(void)unused;
	while (read(uffd, &msg, sizeof msg) == sizeof msg) {
		struct uffdio_copy copy = { .dst = msg.arg.pagefault.address & ~4095ull, .src = (uintptr_t)page, .len = 4096 };
		if (ioctl(uffd, UFFDIO_COPY, &copy))
			die("UFFDIO_COPY");
	}
	return NULL;
}

/* The traced process: a page that is not there, and a thread that serves it, which is not traced. */
static void tracee(int ready) {
	struct uffdio_api api = { .api = UFFD_API };
	void *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct uffdio_register range = { .range = { (uintptr_t)at, 4096 }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	pthread_t server;
	if ((uffd = syscall(SYS_userfaultfd, O_CLOEXEC)) < 0 || ioctl(uffd, UFFDIO_API, &api) || ioctl(uffd, UFFDIO_REGISTER, &range))
		die("userfaultfd");
	if (pthread_create(&server, NULL, serve, NULL) || write(ready, &at, sizeof at) != sizeof at)
		die("start");
	for (;;)
		pause();
}

static void say(const char *what, int failed, long value) {
	if (failed)
		printf("%-19s %s\n", what, strerror(failed));
	else
		printf("%-19s %ld\n", what, value);
}

int main(void) {
	int ready[2];
	void *at;
	char path[64];
	long value = 0;
	if (pipe(ready))
		die("pipe");
	pid_t pid = fork();
	if (pid == 0)
		tracee(ready[1]);
	if (read(ready[0], &at, sizeof at) != sizeof at)
		die("read");
	if (ptrace(PTRACE_ATTACH, pid, 0, 0) || waitpid(pid, NULL, 0) != pid)
		die("PTRACE_ATTACH");

	snprintf(path, sizeof path, "/proc/%d/mem", pid);
	int mem = open(path, O_RDONLY | O_CLOEXEC);
	int failed = pread(mem, &value, sizeof value, (off_t)(uintptr_t)at) == sizeof value ? 0 : errno;
	say("/proc/PID/mem:", failed, value);
	errno = 0;
	value = ptrace(PTRACE_PEEKDATA, pid, at, 0);
	int peeked = errno;
	say("PTRACE_PEEKDATA:", peeked, value);
	struct iovec here = { &value, sizeof value }, there = { at, sizeof value };
	int waited = process_vm_readv(pid, &here, 1, &there, 1, 0) == sizeof value ? 0 : errno;
	say("process_vm_readv:", waited, value);
	errno = 0;
	value = ptrace(PTRACE_PEEKDATA, pid, at, 0);
	say("PTRACE_PEEKDATA:", errno, value);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	return failed != EIO || peeked != EIO; /* 1: this kernel waits, and farpage's documentation should say so */
}

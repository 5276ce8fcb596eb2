/*
 * Which memory a userfaultfd can manage: whether it can be registered (absent pages are asked for), and whether a page
 * can be moved out to ordinary memory, or to a place with the same access rights. Without farpage.
 *
 *   cc -O2 -pthread -o manageable manageable.c && ./manageable
 *
 * Prints a table; exits with 0 if the kernel behaves as described. Seen on 6.18. (Why it matters: docs/decisions.)
 *
 * Written pages of a private file mapping cannot be registered, and UFFDIO_MOVE refuses those of tmpfs, which can. Nor
 * can the mapping be exchanged for another one while the program runs: between taking the written pages away
 * (MREMAP_DONTUNMAP) and putting something else there, whoever looks sees the file.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef UFFDIO_MOVE
struct uffdio_move { __u64 dst, src, len, mode; __s64 move; };
#define UFFDIO_MOVE _IOWR(UFFDIO, 0x05, struct uffdio_move)
#define UFFD_FEATURE_MOVE (1 << 16)
#endif
#define PAGE 4096ul
#define N (8 * PAGE)
enum { R = PROT_READ, W = PROT_WRITE, X = PROT_EXEC, PRIVATE = MAP_PRIVATE | MAP_ANONYMOUS };

static int ufd, failures;

static void need(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(2);
	}
}

static char *map(int prot, int flags, int fd)
{
	char *p = mmap(NULL, N, prot, flags, fd, 0);
	need(p != MAP_FAILED, "mmap");
	return p;
}

/* 0 or an errno. */
static int reg(char *p, size_t len)
{
	struct uffdio_register r = { .range = { (unsigned long)p, len }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	return ioctl(ufd, UFFDIO_REGISTER, &r) ? errno : 0;
}

static int move(char *to, char *from)
{
	struct uffdio_move m = { .dst = (unsigned long)to, .src = (unsigned long)from, .len = PAGE };
	return ioctl(ufd, UFFDIO_MOVE, &m) ? errno : 0;
}

/* A registered place with these access rights. */
static char *place(int prot)
{
	char *p = map(prot, PRIVATE, -1);
	need(reg(p, N) == 0, "UFFDIO_REGISTER");
	return p;
}

static void row(const char *what, char *p, int prot, int registers, int plain, int alike)
{
	int got[3] = { reg(p, N), move(place(R | W), p), move(place(prot), p + PAGE) };
	int want[3] = { registers, plain, alike };
	int wrong = memcmp(got, want, sizeof got) != 0;
	printf("%-34s", what);
	for (int i = 0; i < 3; i++)
		printf(" %-8s", got[i] ? strerrorname_np(got[i]) : "yes");
	puts(wrong ? "  UNEXPECTED" : "");
	failures += wrong;
}

static char *written(int prot, int flags, int fd)
{
	char *p = map(prot | R | W, flags, fd);
	memset(p, 1, N);
	need(mprotect(p, N, prot) == 0, "mprotect");
	return p;
}

static char *file_of(const char *dir)
{
	int fd = open(dir, O_TMPFILE | O_RDWR, 0600);
	need(fd >= 0 && ftruncate(fd, N) == 0, dir);
	return written(R | W, MAP_PRIVATE, fd);
}

/* Answers faults: a page of 7s for each. */
static void *pager(void *arg)
{
	static char sevens[PAGE] __attribute__((aligned(4096)));
	memset(sevens, 7, PAGE);
	for (struct uffd_msg m; read(ufd, &m, sizeof m) == sizeof m;) {
		struct uffdio_copy c = { .src = (unsigned long)sevens, .len = PAGE };
		c.dst = m.arg.pagefault.address & ~(PAGE - 1);
		ioctl(ufd, UFFDIO_COPY, &c);
	}
	return arg;
}

static volatile sig_atomic_t signals;

static void on_signal(int sig)
{
	signals += sig == SIGUSR1;
}

/* The first thread's stack: what it grows by while it is registered is asked for, and signal frames wait for a page. */
static void stack(void)
{
	volatile char deeper[6 * PAGE];
	unsigned long start = 0, end = 0;
	char line[512];
	for (size_t at = 0; at < sizeof deeper; at += PAGE)
		deeper[at] = 1;
	FILE *maps = fopen("/proc/self/maps", "r");
	while (fgets(line, sizeof line, maps))
		if (strstr(line, "[stack]")) sscanf(line, "%lx-%lx", &start, &end);
	fclose(maps);
	need(reg((char *)start, end - start) == 0, "registering the stack");
	char *deep = (char *)start - 300 * PAGE;
	int grown = *(volatile char *)deep == 7;
	printf("%-34s %-8s\n", "first thread's stack", "yes");
	printf("  grows, new pages asked for: %s\n", grown ? "yes" : "no  UNEXPECTED");
	struct sigaction act = { .sa_handler = on_signal };
	need(move(place(R | W), deep) == 0, "moving a page of the stack");
	sigaction(SIGUSR1, &act, NULL);
	/* The frame is to be written to the page that is out. */
	register long tid asm("rdi") = getpid();
	asm volatile("mov %%rsp, %%rbx; mov %1, %%rsp; mov $10, %%esi; mov $62, %%eax; syscall; mov %%rbx, %%rsp"
		     : "+r"(tid) : "r"(deep + PAGE - 64) : "rax", "rbx", "rcx", "rsi", "r11", "memory");
	printf("  a signal frame on a page that is out: %s\n", signals == 1 ? "yes" : "no  UNEXPECTED");
	failures += !grown + (signals != 1);
}

/* A page that was written, in a private mapping of a file: what is seen there while its pages are elsewhere. */
static void exchange(void)
{
	char *p = file_of("/var/tmp");
	void *kept = mremap(p, N, N, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
	int zero = kept != MAP_FAILED && p[0] == 0 && ((char *)kept)[0] == 1;
	printf("written pages taken away from a file mapping: %s\n", zero ? "the file shows" : "UNEXPECTED");
	failures += !zero;
}

/*
 * Shared memory: absent pages are asked for where it is registered, and nowhere else. Taken out, which is to punch a
 * hole, a page reads as zeros by read(2), and through every other mapping, of this process or another.
 */
static void shared(void)
{
	int fd = memfd_create("shared", MFD_CLOEXEC);
	need(fd >= 0 && ftruncate(fd, N) == 0, "memfd_create");
	char *p = written(R | W, MAP_SHARED, fd), *other = map(R | W, MAP_SHARED, fd), byte = 1;
	row("shared", p, R | W, 0, EINVAL, EINVAL);
	need(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE) == 0, "fallocate");
	need(pread(fd, &byte, 1, 0) == 1, "pread");
	int zero = byte == 0 && other[0] == 0;
	printf("a shared page that is out, by read(2) and by another mapping: %s\n", zero ? "zeros" : "UNEXPECTED");
	failures += !zero;
}

int main(void)
{
	ufd = syscall(SYS_userfaultfd, O_CLOEXEC);
	if (ufd < 0) ufd = ioctl(open("/dev/userfaultfd", O_RDWR | O_CLOEXEC), USERFAULTFD_IOC_NEW, O_CLOEXEC);
	need(ufd >= 0, "userfaultfd");
	struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_MOVE };
	need(ioctl(ufd, UFFDIO_API, &api) == 0, "UFFDIO_API");
	printf("%-34s %-8s %-8s %-8s\n", "", "register", "move", "to alike");
	row("anonymous", written(R | W, PRIVATE, -1), R | W, 0, 0, 0);
	row("anonymous, executable", written(R | W | X, PRIVATE, -1), R | W | X, 0, EINVAL, 0);
	row("executable, not writable", written(R | X, PRIVATE, -1), R | X, 0, EINVAL, EINVAL);
	row("read-only", written(R, PRIVATE, -1), R, 0, EINVAL, EINVAL);
	char *locked = written(R | W, PRIVATE, -1);
	need(mlock(locked, N) == 0, "mlock");
	row("locked", locked, R | W, 0, EINVAL, EINVAL);
	row("written, private, a file's", file_of("/var/tmp"), R | W, EINVAL, EINVAL, EINVAL);
	row("written, private, tmpfs", file_of("/dev/shm"), R | W, 0, EINVAL, EINVAL);
	shared();
	exchange();
	pthread_t thread;
	need(pthread_create(&thread, NULL, pager, NULL) == 0, "pthread_create");
	stack();
	return failures != 0;
}

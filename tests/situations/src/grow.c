/* Gets memory in one way, fills it, reads it back:
 *
 *     grow WAY MB [ENGINE [FORK]]
 *
 * Prints "ok". With ENGINE it waits for an engine thread in the process that has got the memory: before it fills what
 * it got at once, after it has filled what it got in pieces. FORK: how children of "child" and "half" are made. */
#define _GNU_SOURCE
#include <dirent.h>
#include <err.h>
#include <fcntl.h>
#include <malloc.h>
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PIECE = 1 << 20, RW = PROT_READ | PROT_WRITE, ANON = MAP_PRIVATE | MAP_ANONYMOUS };

#ifdef STATIC_MB
static char statics[(size_t)STATIC_MB << 20];
#endif

static size_t bytes;
static int wants_engine;

static int has_engine(void)
{
	DIR *dir = opendir("/proc/self/task");
	int found = 0;
	for (struct dirent *d; dir && !found && (d = readdir(dir));) {
		char path[512], name[32] = "";
		snprintf(path, sizeof path, "/proc/self/task/%s/comm", d->d_name);
		FILE *f = fopen(path, "r");
		if (!f)
			continue;
		found = fgets(name, sizeof name, f) && strncmp(name, "farpage-", 8) == 0;
		fclose(f);
	}
	if (dir)
		closedir(dir);
	return found;
}

static void wait_for_engine(void)
{
	/* A minute is a hang. */
	for (int i = 0; wants_engine && !has_engine(); i++) {
		if (i == 6000)
			errx(1, "no engine");
		usleep(10000);
	}
}

static void *checked(void *p)
{
	if (p == MAP_FAILED || !p)
		err(2, "no memory");
	return p;
}

/* Words that know their address. */
static void fill(void *p, size_t len)
{
	for (size_t at = 0; at < len; at += PAGE)
		*(uintptr_t *)((char *)p + at) = ((uintptr_t)p + at) ^ 0x5a5a;
}

static void check(void *p, size_t len)
{
	for (size_t at = 0; at < len; at += PAGE)
		if (*(uintptr_t *)((char *)p + at) != (((uintptr_t)p + at) ^ 0x5a5a))
			errx(1, "%p is wrong", (void *)((char *)p + at));
}

static void both(void *p, size_t len)
{
	wait_for_engine();
	fill(p, len);
	check(p, len);
}

/* Pieces from `take`. */
static void pieces(void *(*take)(size_t), size_t piece)
{
	size_t n = bytes / piece;
	char **all = calloc(n, sizeof *all);
	for (size_t i = 0; i < n; i++)
		fill(all[i] = checked(take(piece)), piece);
	wait_for_engine();
	for (size_t i = 0; i < n; i++)
		check(all[i], piece);
}

static void *mapped(size_t len)
{
	return mmap(NULL, len, RW, ANON, -1, 0);
}

static void *by_syscall(size_t len)
{
	return (void *)syscall(SYS_mmap, NULL, len, RW, ANON, -1, 0);
}

/* By an instruction of its own. */
static void *unseen(size_t len)
{
	register long flags __asm__("r10") = ANON, fd __asm__("r8") = -1, offset __asm__("r9") = 0;
	long at = SYS_mmap;
	__asm__ volatile("syscall"
			 : "+a"(at)
			 : "D"(0), "S"(len), "d"(RW), "r"(flags), "r"(fd), "r"(offset)
			 : "rcx", "r11", "memory");
	return at < 0 ? NULL : (void *)at;
}

static void *nothing(void *unused)
{
	return unused;
}

/* As runtimes do that have threads and map their memory themselves. */
static void with_a_thread(void)
{
	pthread_t thread;
	if (pthread_create(&thread, NULL, nothing, NULL) || pthread_join(thread, NULL))
		errx(2, "no thread");
	pieces(unseen, PIECE);
}

static void *broken(size_t len)
{
	char *at = sbrk(0);
	return brk(at + len) ? NULL : at;
}

static void *grown_break(size_t len)
{
	return sbrk(len);
}

static void remapped(void)
{
	size_t have = PIECE;
	char *p = checked(mapped(have));
	fill(p, have);
	while (have < bytes) {
		char *new = checked(mremap(p, have, have + PIECE, MREMAP_MAYMOVE));
		if (new != p) /* the words know where they were */
			fill(new, have);
		p = new;
		fill(p + have, PIECE);
		have += PIECE;
	}
	wait_for_engine();
	check(p, have);
}

static void opened(void)
{
	char *p = checked(mmap(NULL, bytes, PROT_NONE, ANON | MAP_NORESERVE, -1, 0));
	for (size_t at = 0; at < bytes; at += PIECE) {
		if (mprotect(p + at, PIECE, RW))
			err(2, "mprotect");
		fill(p + at, PIECE);
	}
	wait_for_engine();
	check(p, bytes);
}

static void populated(void)
{
	both(checked(mmap(NULL, bytes, RW, ANON | MAP_POPULATE, -1, 0)), bytes);
}

static void private_file(void)
{
	int fd = memfd_create("grow", 0);
	if (fd < 0 || ftruncate(fd, bytes))
		err(2, "memfd");
	both(checked(mmap(NULL, bytes, RW, MAP_PRIVATE, fd, 0)), bytes);
}

static void __attribute__((noinline)) deep(size_t left)
{
	volatile char frame[16 * PAGE];
	both((void *)frame, sizeof frame - PAGE);
	if (left > sizeof frame)
		deep(left - sizeof frame);
	check((void *)frame, sizeof frame - PAGE);
}

static void *on_stack(void *unused)
{
	(void)unused;
	deep(bytes - PIECE);
	return NULL;
}

static void thread_stack(void)
{
	pthread_attr_t attr;
	pthread_t thread;
	pthread_attr_init(&attr);
	if (pthread_attr_setstacksize(&attr, bytes) || pthread_create(&thread, &attr, on_stack, NULL))
		errx(2, "no thread");
	pthread_join(thread, NULL);
}

static const char *how = "fork";
static char *inherited;

static pid_t made(int (*run)(void *))
{
	static char stack[256 << 10];
	struct clone_args args = {.exit_signal = SIGCHLD};
	pid_t pid = -1;
	if (strcmp(how, "fork") == 0)
		pid = fork();
	else if (strcmp(how, "_Fork") == 0)
		pid = _Fork();
	else if (strcmp(how, "SYS_fork") == 0)
		pid = syscall(SYS_fork);
	else if (strcmp(how, "SYS_clone") == 0)
		pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	else if (strcmp(how, "SYS_clone3") == 0)
		pid = syscall(SYS_clone3, &args, sizeof args);
	else if (strcmp(how, "clone") == 0)
		pid = clone(run, stack + sizeof stack, SIGCHLD, NULL);
	if (pid == 0)
		_exit(run(NULL));
	return pid;
}

static void in_child_that(int (*run)(void *))
{
	int status;
	pid_t pid = made(run);
	if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
		errx(1, "the child ended with %x", status);
}

static int fill_inherited(void *unused)
{
	(void)unused;
	both(inherited, bytes);
	return 0;
}

/* A child fills what its parent has only reserved. */
static void in_child(void)
{
	inherited = checked(mapped(bytes));
	in_child_that(fill_inherited);
}

static int fill_own(void *unused)
{
	(void)unused;
	char *own = checked(mapped(bytes));
	both(own, bytes);
	check(inherited, bytes / 2);
	return 0;
}

/* A child of a process that has filled half. */
static void in_child_after_half(void)
{
	inherited = checked(mapped(bytes / 2));
	fill(inherited, bytes / 2);
	in_child_that(fill_own);
}

/* A child that nobody announces fills its own. */
static void in_unannounced_child(void)
{
	int status;
	pid_t pid = _Fork();
	if (pid == 0) {
		pieces(mapped, PIECE);
		_exit(0);
	}
	if (waitpid(pid, &status, 0) != pid || status)
		errx(1, "the child ended with %x", status);
}

int main(int argc, char **argv)
{
	if (argc < 3)
		errx(2, "usage: grow WAY MB [ENGINE]");
	const char *way = argv[1];
	wants_engine = argc > 3;
	if (argc > 4)
		how = argv[4];
	bytes = strtoul(argv[2], NULL, 10) << 20;
#define WAY(name) (strcmp(way, name) == 0)
	if (WAY("mmap"))
		both(checked(mapped(bytes)), bytes);
	else if (WAY("pieces"))
		pieces(mapped, 2 * PAGE);
	else if (WAY("syscall"))
		pieces(by_syscall, PIECE);
	else if (WAY("malloc"))
		pieces(malloc, 3 * PAGE);
	else if (WAY("large"))
		pieces(malloc, PIECE);
	else if (WAY("brk"))
		pieces(broken, PIECE);
	else if (WAY("sbrk"))
		pieces(grown_break, PIECE);
	else if (WAY("mremap"))
		remapped();
	else if (WAY("mprotect"))
		opened();
	else if (WAY("populate"))
		populated();
	else if (WAY("file"))
		private_file();
	else if (WAY("stack"))
		deep(bytes);
	else if (WAY("thread"))
		thread_stack();
	else if (WAY("unseen"))
		with_a_thread();
	else if (WAY("child"))
		in_child();
	else if (WAY("half"))
		in_child_after_half();
	else if (WAY("unannounced"))
		in_unannounced_child();
#ifdef STATIC_MB
	else if (WAY("static"))
		both(statics, sizeof statics);
#endif
	else
		errx(2, "no such way: %s", way);
	puts("ok");
	return 0;
}

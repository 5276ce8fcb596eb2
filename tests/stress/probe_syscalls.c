/*
 * Does the kernel see swapped-out memory as it should? One line for each way in which the kernel, or another process
 * through the kernel, reads or writes a program's memory:
 *
 *   PASS read                 16 of 16 pages were out
 *
 * The program fills a buffer of MIB MiB, then writes to as much other memory, so that under a smaller budget the buffer
 * is swapped out. Each probe has its own pages of the buffer; mincore() tells how many of them were out just before.
 * Run natively, all must pass too, with no page out.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096u
#define SPAN_PAGES 16u
#define SPAN (SPAN_PAGES * PAGE)
#define WORDS (SPAN / 8u)

/* The pages of the probe that runs, their number in the buffer, and room to copy them to. */
static uint64_t *span;
static size_t span_number;
static uint64_t *scratch;
static char reason[256];
static int to_helper, from_helper;
static pid_t helper_pid;
static const char *tmpdir;

enum result { FAIL, PASS, SKIP };

static uint64_t value(size_t number, size_t i, int version)
{
	uint64_t x = (number * WORDS + i) * 0x9e3779b97f4a7c15u + version;

	x ^= x >> 29;
	/* Every fourth span compresses badly. */
	return number % 4 == 3 ? x * 0xbf58476d1ce4e5b9u : (x & 0xff0000ffffff) | 1;
}

static void fill(uint64_t *p, size_t number, int version)
{
	for (size_t i = 0; i < WORDS; i++)
		p[i] = value(number, i, version);
}

static enum result because(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(reason, sizeof reason, fmt, ap);
	va_end(ap);
	return FAIL;
}

static enum result errno_of(const char *call)
{
	return because("%s: %s", call, strerror(errno));
}

static enum result skip(const char *why)
{
	because("%s: %s", why, strerror(errno));
	return SKIP;
}

static enum result is(const uint64_t *p, int version)
{
	for (size_t i = 0; i < WORDS; i++)
		if (p[i] != value(span_number, i, version))
			return because("word %zu is %016llx, must be %016llx", i, (unsigned long long)p[i],
				       (unsigned long long)value(span_number, i, version));
	return PASS;
}

static size_t pages_out(const void *p)
{
	unsigned char in[SPAN_PAGES];
	size_t out = 0;

	if (mincore((void *)p, SPAN, in))
		return 0;
	for (unsigned i = 0; i < SPAN_PAGES; i++)
		out += !(in[i] & 1);
	return out;
}

static int temporary(int flags)
{
	return open(tmpdir, O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
}

/* A file with version 1 of the span's content. */
static int file_with_new(int flags)
{
	int fd = temporary(flags);

	if (fd < 0)
		return fd;
	fill(scratch, span_number, 1);
	if (pwrite(fd, scratch, SPAN, 0) != SPAN)
		return -1;
	memset(scratch, 0, SPAN);
	return fd;
}

/* --- descriptors --- */

static enum result write_to(int in, int out)
{
	size_t sent = 0, got = 0;

	while (got < SPAN) {
		ssize_t n = sent < SPAN ? write(in, (char *)span + sent, SPAN - sent < 32768 ? SPAN - sent : 32768) : 0;
		if (n < 0)
			return errno_of("write");
		sent += n;
		n = read(out, (char *)scratch + got, SPAN - got);
		if (n <= 0)
			return errno_of("read");
		got += n;
	}
	return is(scratch, 0);
}

static enum result read_from(int in, int out, ssize_t (*receive)(int, char *, size_t))
{
	size_t sent = 0, got = 0;

	fill(scratch, span_number, 1);
	while (got < SPAN) {
		ssize_t n = sent < SPAN ? write(in, (char *)scratch + sent, SPAN - sent < 32768 ? SPAN - sent : 32768) : 0;
		if (n < 0)
			return errno_of("write");
		sent += n;
		n = receive(out, (char *)span + got, SPAN - got);
		if (n <= 0)
			return errno_of("receiving");
		got += n;
	}
	return is(span, 1);
}

static ssize_t by_read(int fd, char *p, size_t n) { return read(fd, p, n); }
static ssize_t by_recv(int fd, char *p, size_t n) { return recv(fd, p, n, 0); }

static ssize_t by_readv(int fd, char *p, size_t n)
{
	struct iovec iov[3] = { { p, n / 3 }, { p + n / 3, n / 3 }, { p + n / 3 * 2, n - n / 3 * 2 } };

	return readv(fd, iov, 3);
}

static enum result through_pipe(bool out)
{
	int fd[2];

	if (pipe2(fd, O_CLOEXEC))
		return errno_of("pipe");
	enum result r = out ? write_to(fd[1], fd[0]) : read_from(fd[1], fd[0], by_read);
	close(fd[0]);
	close(fd[1]);
	return r;
}

static enum result through_socket(ssize_t (*receive)(int, char *, size_t))
{
	int fd[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd))
		return errno_of("socketpair");
	enum result r = receive ? read_from(fd[0], fd[1], receive) : write_to(fd[0], fd[1]);
	close(fd[0]);
	close(fd[1]);
	return r;
}

static enum result p_write(void) { return through_pipe(true); }
static enum result p_read(void) { return through_pipe(false); }
static enum result p_send(void) { return through_socket(NULL); }
static enum result p_recv(void) { return through_socket(by_recv); }
static enum result p_readv(void) { return through_socket(by_readv); }

static enum result p_pwrite(void)
{
	int fd = temporary(0);

	if (fd < 0 || pwrite(fd, span, SPAN, 0) != SPAN || pread(fd, scratch, SPAN, 0) != SPAN)
		return errno_of("pwrite");
	close(fd);
	return is(scratch, 0);
}

static enum result p_pread(void)
{
	int fd = file_with_new(0);

	if (fd < 0 || pread(fd, span, SPAN, 0) != SPAN)
		return errno_of("pread");
	close(fd);
	return is(span, 1);
}

static enum result p_pwrite_direct(void)
{
	int fd = temporary(O_DIRECT);

	if (fd < 0)
		return skip("O_DIRECT");
	if (pwrite(fd, span, SPAN, 0) != SPAN || pread(fd, scratch, SPAN, 0) != SPAN)
		return errno_of("pwrite");
	close(fd);
	return is(scratch, 0);
}

static enum result p_pread_direct(void)
{
	int fd = file_with_new(O_DIRECT);

	if (fd < 0)
		return skip("O_DIRECT");
	if (pread(fd, span, SPAN, 0) != SPAN)
		return errno_of("pread");
	close(fd);
	return is(span, 1);
}

static enum result p_vmsplice(void)
{
	int fd[2];
	struct iovec iov = { span, 8 * PAGE };

	if (pipe2(fd, O_CLOEXEC) || vmsplice(fd[1], &iov, 1, 0) != 8 * PAGE)
		return errno_of("vmsplice");
	memcpy(scratch + PAGE, span + PAGE, SPAN / 2);
	if (read(fd[0], scratch, 8 * PAGE) != 8 * PAGE)
		return errno_of("read");
	close(fd[0]);
	close(fd[1]);
	return is(scratch, 0);
}

/* --- io_uring, without its library --- */

static enum result uring(int opcode, int fd, bool fixed)
{
	struct io_uring_params params = { 0 };
	int ring = syscall(SYS_io_uring_setup, 4, &params);

	if (ring < 0)
		return skip("io_uring_setup");
	size_t sq_bytes = params.sq_off.array + params.sq_entries * sizeof(unsigned);
	size_t cq_bytes = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
	char *sq = mmap(NULL, sq_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
	char *cq = mmap(NULL, cq_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_CQ_RING);
	struct io_uring_sqe *sqe = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
	if (sq == MAP_FAILED || cq == MAP_FAILED || sqe == MAP_FAILED)
		return errno_of("mmap of the rings");
	struct iovec iov = { span, SPAN };
	if (fixed && syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &iov, 1))
		return errno_of("IORING_REGISTER_BUFFERS");

	memset(sqe, 0, sizeof *sqe);
	sqe->opcode = opcode;
	sqe->fd = fd;
	sqe->addr = (uintptr_t)span;
	sqe->len = SPAN;
	((unsigned *)(sq + params.sq_off.array))[0] = 0;
	__atomic_store_n((unsigned *)(sq + params.sq_off.tail), 1, __ATOMIC_RELEASE);
	if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1)
		return errno_of("io_uring_enter");
	struct io_uring_cqe *cqe = (struct io_uring_cqe *)(cq + params.cq_off.cqes);
	int done = cqe->res;
	munmap(sq, sq_bytes);
	munmap(cq, cq_bytes);
	munmap(sqe, PAGE);
	close(ring);
	if (done != SPAN) {
		errno = done < 0 ? -done : EIO;
		return errno_of("the request");
	}
	return PASS;
}

static enum result uring_in(int flags, bool fixed)
{
	int fd = file_with_new(flags);

	if (fd < 0)
		return skip("a file");
	enum result r = uring(fixed ? IORING_OP_READ_FIXED : IORING_OP_READ, fd, fixed);
	close(fd);
	return r == PASS ? is(span, 1) : r;
}

static enum result p_uring_read(void) { return uring_in(0, false); }
static enum result p_uring_read_direct(void) { return uring_in(O_DIRECT, false); }
static enum result p_uring_read_fixed(void) { return uring_in(0, true); }

static enum result p_uring_write(void)
{
	int fd = temporary(0);
	enum result r = fd < 0 ? errno_of("a file") : uring(IORING_OP_WRITE, fd, false);

	if (r == PASS && pread(fd, scratch, SPAN, 0) != SPAN)
		return errno_of("pread");
	close(fd);
	return r == PASS ? is(scratch, 0) : r;
}

/* --- another process looks in --- */

/* What the helper process is asked to do, and its answer. */
struct order {
	char kind;
	pid_t pid;
	uint64_t addr;
	size_t number;
};

struct answer {
	int result;
	char reason[sizeof reason];
};

static enum result remote_vm(const struct order *o, bool in)
{
	struct iovec there = { (void *)o->addr, SPAN }, here = { scratch, SPAN };

	if (in)
		fill(scratch, o->number, 1);
	ssize_t n = in ? process_vm_writev(o->pid, &here, 1, &there, 1, 0) : process_vm_readv(o->pid, &here, 1, &there, 1, 0);
	if (n != SPAN)
		return errno_of(in ? "process_vm_writev" : "process_vm_readv");
	return in ? PASS : is(scratch, 0);
}

/* /proc/PID/mem does not wait for a page: the kernel says EIO for one that is swapped out, and nothing else may
 * happen. process_vm_readv does wait, so that it can be had after all. It may be taken out again at once. The same goes
 * for ptrace. */
static bool again(const struct order *o, uint64_t addr, int *tries)
{
	char byte;
	struct iovec here = { &byte, 1 }, there = { (void *)(uintptr_t)addr, 1 };

	return errno == EIO && (*tries)++ < 1000 && process_vm_readv(o->pid, &here, 1, &there, 1, 0) == 1;
}

static enum result remote_mem(const struct order *o)
{
	char path[64];
	int tries = 0;

	snprintf(path, sizeof path, "/proc/%d/mem", (int)o->pid);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return errno_of(path);
	for (size_t at = 0; at < SPAN; at += PAGE)
		while (pread(fd, (char *)scratch + at, PAGE, o->addr + at) != PAGE)
			if (!again(o, o->addr + at, &tries))
				return errno_of("pread of /proc/PID/mem");
	if (is(scratch, 0) != PASS)
		return FAIL;
	fill(scratch, o->number, 1);
	for (size_t at = 0; at < SPAN; at += PAGE)
		while (pwrite(fd, (char *)scratch + at, PAGE, o->addr + at) != PAGE)
			if (!again(o, o->addr + at, &tries))
				return errno_of("pwrite to /proc/PID/mem");
	close(fd);
	return PASS;
}

static bool peek(const struct order *o, size_t word, int *tries)
{
	uint64_t addr = o->addr + word * 8;

	do {
		errno = 0;
		scratch[word] = ptrace(PTRACE_PEEKDATA, o->pid, addr, 0);
	} while (errno && again(o, addr, tries));
	return errno == 0;
}

static bool poke(const struct order *o, size_t word, uint64_t to, int *tries)
{
	uint64_t addr = o->addr + word * 8;

	while (ptrace(PTRACE_POKEDATA, o->pid, addr, to))
		if (!again(o, addr, tries))
			return false;
	return true;
}

static enum result remote_ptrace(const struct order *o)
{
	int status, tries = 0;

	if (ptrace(PTRACE_SEIZE, o->pid, 0, 0))
		return errno_of("PTRACE_SEIZE");
	if (ptrace(PTRACE_INTERRUPT, o->pid, 0, 0) || waitpid(o->pid, &status, __WALL) != o->pid)
		return errno_of("PTRACE_INTERRUPT");
	enum result r = PASS;
	for (size_t i = 0; i < WORDS && r == PASS; i += 61) {
		if (!peek(o, i, &tries))
			r = errno_of("PTRACE_PEEKDATA");
		else if (scratch[i] != value(o->number, i, 0))
			r = because("PTRACE_PEEKDATA: word %zu is %016llx", i, (unsigned long long)scratch[i]);
	}
	/* The last word of each page, so that some pages see a write before any read. */
	for (size_t i = PAGE / 8 - 1; i < WORDS && r == PASS; i += PAGE / 8)
		if (!poke(o, i, value(o->number, i, 1), &tries))
			r = errno_of("PTRACE_POKEDATA");
	ptrace(PTRACE_DETACH, o->pid, 0, 0);
	return r;
}

/* The helper is this program, started as another process. */
static int helper(void)
{
	struct order o;

	while (read(0, &o, sizeof o) == sizeof o) {
		struct answer a = { 0 };
		span_number = o.number;
		reason[0] = 0;
		a.result = o.kind == 'm' ? remote_mem(&o) : o.kind == 'p' ? remote_ptrace(&o) : remote_vm(&o, o.kind == 'w');
		memcpy(a.reason, reason, sizeof reason);
		if (write(1, &a, sizeof a) != sizeof a)
			return 1;
	}
	return 0;
}

static bool start_helper(void)
{
	int ask[2], tell[2];

	if (pipe2(ask, O_CLOEXEC) || pipe2(tell, O_CLOEXEC))
		return false;
	helper_pid = fork();
	if (helper_pid == 0) {
		dup2(ask[0], 0);
		dup2(tell[1], 1);
		execl("/proc/self/exe", "probe_syscalls", "--helper", (char *)NULL);
		_exit(127);
	}
	close(ask[0]);
	close(tell[1]);
	to_helper = ask[1];
	from_helper = tell[0];
	prctl(PR_SET_PTRACER, helper_pid, 0, 0, 0);
	return helper_pid > 0;
}

static enum result ask_helper(char kind)
{
	struct order o = { kind, getpid(), (uintptr_t)span, span_number };
	struct answer a;

	if (write(to_helper, &o, sizeof o) != sizeof o)
		return errno_of("asking the helper process");
	ssize_t n;
	do
		n = read(from_helper, &a, sizeof a);
	while (n < 0 && errno == EINTR);
	if (n != sizeof a)
		return because("the helper process is gone");
	memcpy(reason, a.reason, sizeof reason);
	return a.result;
}

static enum result p_vm_readv(void) { return ask_helper('v'); }

static enum result p_vm_writev(void)
{
	enum result r = ask_helper('w');

	return r == PASS ? is(span, 1) : r;
}

static enum result p_proc_mem(void)
{
	enum result r = ask_helper('m');

	return r == PASS ? is(span, 1) : r;
}

static enum result p_ptrace(void)
{
	enum result r = ask_helper('p');

	if (r != PASS)
		return r;
	for (size_t i = 0; i < WORDS; i++)
		if (span[i] != value(span_number, i, (i + 1) % (PAGE / 8) == 0))
			return because("word %zu is %016llx", i, (unsigned long long)span[i]);
	return PASS;
}

/* --- the kernel's own small reads and writes --- */

static enum result p_struct_out(void)
{
	struct stat *st = (struct stat *)span;
	struct timespec *ts = (struct timespec *)((char *)span + 2 * PAGE);
	char *cwd = (char *)span + 4 * PAGE, *bytes = (char *)span + 6 * PAGE, want[PATH_MAX];

	if (stat("/", st) || !S_ISDIR(st->st_mode))
		return errno_of("stat");
	if (syscall(SYS_clock_gettime, CLOCK_REALTIME, ts) || ts->tv_sec < 1000000000)
		return errno_of("clock_gettime");
	if (!getcwd(cwd, 512) || strcmp(cwd, getcwd(want, sizeof want)))
		return errno_of("getcwd");
	// More than 256 bytes may come in parts, where the kernel has something to do for the thread.
	for (ssize_t done = 0, n; done < 2 * PAGE; done += n)
		if ((n = getrandom(bytes + done, 2 * PAGE - done, 0)) <= 0)
			return errno_of("getrandom");
	return PASS;
}

static enum result p_struct_in(void)
{
	/* Written while it was in; the caller has pushed it out since. */
	struct pollfd *p = (struct pollfd *)span;
	struct iovec *iov = (struct iovec *)(span + 2 * PAGE / 8);

	if (poll(p, 1, 0) != 1 || !(p->revents & POLLOUT))
		return errno_of("poll");
	if (writev(p->fd, iov, 2) != 16)
		return errno_of("writev");
	close(p->fd);
	return PASS;
}

static void prepare_struct_in(void)
{
	struct pollfd *p = (struct pollfd *)span;
	struct iovec *iov = (struct iovec *)(span + 2 * PAGE / 8);

	*p = (struct pollfd){ .fd = open("/dev/null", O_WRONLY | O_CLOEXEC), .events = POLLOUT };
	iov[0] = (struct iovec){ span + 4 * PAGE / 8, 8 };
	iov[1] = (struct iovec){ span + 6 * PAGE / 8, 8 };
}

static enum result p_exec(void)
{
	extern char **environ;
	char **argv = (char **)span;
	int status;
	pid_t pid;

	if (posix_spawn(&pid, argv[0], NULL, NULL, argv, environ) || waitpid(pid, &status, 0) != pid)
		return errno_of("posix_spawn");
	return status == 0 ? PASS : because("wait status %x", status);
}

static void prepare_exec(void)
{
	char **argv = (char **)span, *text = (char *)span + 3 * PAGE;

	argv[0] = strcpy(text, "/bin/sh");
	argv[1] = strcpy(text + PAGE, "-c");
	argv[2] = strcpy(text + 2 * PAGE, "test \"$0\" = swapped");
	argv[3] = strcpy(text + 3 * PAGE, "swapped");
	argv[4] = NULL;
}

static enum result p_futex(void)
{
	/* The low half of a word that is not what is expected: EAGAIN; then a wait that times out: ETIMEDOUT. */
	uint32_t *f = (uint32_t *)span, is_now = (uint32_t)value(span_number, 0, 0);
	struct timespec soon = { 0, 1000000 };

	if (syscall(SYS_futex, f, FUTEX_WAIT_PRIVATE, is_now + 1, &soon, NULL, 0) != -1 || errno != EAGAIN)
		return errno_of("futex with another value");
	f += PAGE / 4;
	is_now = (uint32_t)value(span_number, PAGE / 8, 0);
	if (syscall(SYS_futex, f, FUTEX_WAIT_PRIVATE, is_now, &soon, NULL, 0) != -1 || errno != ETIMEDOUT)
		return errno_of("futex with this value");
	return is(span, 0);
}

static volatile int signal_seen;

static void on_signal(int sig)
{
	(void)sig;
	signal_seen = 1;
}

static enum result p_signal_stack(void)
{
	stack_t stack = { .ss_sp = span, .ss_size = SPAN }, off = { .ss_flags = SS_DISABLE };
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_ONSTACK };

	if (sigaltstack(&stack, NULL) || sigaction(SIGUSR1, &action, NULL))
		return errno_of("sigaltstack");
	raise(SIGUSR1);
	sigaltstack(&off, NULL);
	return signal_seen ? PASS : because("no signal came");
}

static void *on_thread(void *arg)
{
	volatile char deep[8 * PAGE];

	for (unsigned i = 0; i < sizeof deep; i += PAGE / 2)
		deep[i] = (char)i;
	return (char *)arg + deep[0];
}

static char thread_token;

static enum result p_thread_stack(void)
{
	pthread_attr_t attr;
	pthread_t thread;
	void *answer = NULL;

	pthread_attr_init(&attr);
	if ((errno = pthread_attr_setstack(&attr, span, SPAN)))
		return errno_of("pthread_attr_setstack");
	if ((errno = pthread_create(&thread, &attr, on_thread, &thread_token)))
		return errno_of("pthread_create");
	pthread_join(thread, &answer);
	return answer == &thread_token ? PASS : because("the thread went wrong");
}

static enum result p_mlock(void)
{
	if (mlock(span, SPAN))
		return skip("mlock");
	enum result r = is(span, 0);
	if (r == PASS && pages_out(span))
		r = because("locked pages are out");
	munlock(span, SPAN);
	return r;
}

static enum result p_populate(void)
{
	if (madvise(span, SPAN, MADV_POPULATE_READ))
		return skip("MADV_POPULATE_READ");
	return is(span, 0);
}

static enum result p_memory(void)
{
	return is(span, 0);
}

static const struct probe {
	const char *name;
	enum result (*run)(void);
	void (*prepare)(void);
} probes[] = {
	{ "memory", p_memory, NULL },
	{ "write", p_write, NULL },
	{ "read", p_read, NULL },
	{ "send", p_send, NULL },
	{ "recv", p_recv, NULL },
	{ "readv", p_readv, NULL },
	{ "pwrite", p_pwrite, NULL },
	{ "pread", p_pread, NULL },
	{ "pwrite O_DIRECT", p_pwrite_direct, NULL },
	{ "pread O_DIRECT", p_pread_direct, NULL },
	{ "vmsplice", p_vmsplice, NULL },
	{ "io_uring read", p_uring_read, NULL },
	{ "io_uring read O_DIRECT", p_uring_read_direct, NULL },
	{ "io_uring read fixed", p_uring_read_fixed, NULL },
	{ "io_uring write", p_uring_write, NULL },
	{ "process_vm_readv", p_vm_readv, NULL },
	{ "process_vm_writev", p_vm_writev, NULL },
	{ "ptrace peek and poke", p_ptrace, NULL },
	{ "/proc/PID/mem", p_proc_mem, NULL },
	{ "results of system calls", p_struct_out, NULL },
	{ "arguments of system calls", p_struct_in, prepare_struct_in },
	{ "arguments of a program", p_exec, prepare_exec },
	{ "futex", p_futex, NULL },
	{ "signal stack", p_signal_stack, NULL },
	{ "thread stack", p_thread_stack, NULL },
	{ "mlock", p_mlock, NULL },
	{ "MADV_POPULATE_READ", p_populate, NULL },
};
#define PROBES (sizeof probes / sizeof *probes)

int main(int argc, char **argv)
{
	size_t mib = argc > 1 ? strtoul(argv[1], NULL, 10) : 64, wanted = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
	size_t spans = mib * 1048576 / SPAN, failed = 0, all_in = 0;

	scratch = aligned_alloc(PAGE, SPAN);
	memset(scratch, 0, SPAN);
	tmpdir = getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp";
	if (argc == 2 && strcmp(argv[1], "--helper") == 0)
		return helper();
	if (argc > 3 || spans < 2 * PROBES) {
		fprintf(stderr, "usage: probe_syscalls [MIB [OUT]]\n"
				"  MIB  size of the buffer, at least %zu (default 64); use more than the RAM budget\n"
				"  OUT  fail when fewer probes than this met swapped-out pages (default 0)\n",
			2 * PROBES * SPAN / 1048576 + 1);
		return 2;
	}
	if (!start_helper())
		return 2;

	char *buffer = mmap(NULL, spans * SPAN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *other = mmap(NULL, spans * SPAN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (buffer == MAP_FAILED || other == MAP_FAILED)
		return 2;
	for (size_t i = 0; i < spans; i++)
		fill((uint64_t *)(buffer + i * SPAN), i, 0);
	/* Each probe has one span; the one after it stays unused, so that reading ahead does not help the next probe. */
	for (size_t i = 0; i < PROBES; i++) {
		span = (uint64_t *)(buffer + 2 * i * SPAN);
		if (probes[i].prepare)
			probes[i].prepare();
	}
	for (size_t i = 0; i < spans; i++)
		fill((uint64_t *)(other + i * SPAN), i, 2);

	for (size_t i = 0; i < PROBES; i++) {
		static const char *const words[] = { "FAIL", "PASS", "SKIP" };
		span_number = 2 * i;
		span = (uint64_t *)(buffer + span_number * SPAN);
		reason[0] = 0;
		size_t out = pages_out(span);
		/* In case it hangs: ps shows where. */
		prctl(PR_SET_NAME, probes[i].name, 0, 0, 0);
		enum result r = probes[i].run();
		printf("%s %-26s %2zu of %u pages were out%s%s\n", words[r], probes[i].name, out, SPAN_PAGES,
		       reason[0] && r != PASS ? ": " : "", r != PASS ? reason : "");
		fflush(stdout);
		failed += r == FAIL;
		all_in += out == 0;
	}
	/* What no probe touched must have stayed as it was. */
	for (size_t i = 0; i < spans; i++) {
		span_number = i;
		if ((i % 2 || i >= 2 * PROBES) && is((uint64_t *)(buffer + i * SPAN), 0) != PASS) {
			printf("FAIL the rest of the buffer, span %zu: %s\n", i, reason);
			failed++;
			break;
		}
		if (is((uint64_t *)(other + i * SPAN), 2) != PASS) {
			printf("FAIL the other memory, span %zu: %s\n", i, reason);
			failed++;
			break;
		}
	}
	close(to_helper);
	waitpid(helper_pid, NULL, 0);
	if (PROBES - all_in < wanted) {
		printf("FAIL only %zu probes met swapped-out pages, %zu were expected to\n", PROBES - all_in, wanted);
		failed++;
	}
	printf("%zu probes, %zu failed, %zu met swapped-out pages\n", (size_t)PROBES, failed, PROBES - all_in);
	return failed ? 1 : 0;
}

/* Memory that the kernel, or a device, has while the program's memory is swapped out around it.
 *
 *   given_away pipe|socket|aio|uring|thread DIRECTORY
 *
 * pipe, socket: pages are given to a pipe (vmsplice) or a socket (MSG_ZEROCOPY), and read from there in the end.
 * aio, uring, thread: a file is read into pages with O_DIRECT, meanwhile or (uring: registered buffers) at last.
 * Says how many pages came out right, and whether the memory is. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60
#endif
#ifndef MSG_ZEROCOPY
#define MSG_ZEROCOPY 0x4000000
#endif

enum { PAGE = 4096, PAGES = 64 * 256, GIVEN = 200 };
static const char *what;

static void die(const char *call)
{
	fprintf(stderr, "%s: %s: %s\n", what, call, strerror(errno));
	exit(errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL || errno == EPERM ? 77 : 2);
}

/* Word `at` of page `page`, of the program's memory or of the file. */
static uint32_t word(uint32_t page, uint32_t at, uint32_t salt)
{
	uint32_t x = (page * 1024 + at) * 2654435761u + salt;
	return at % 4 ? x >> 13 : page;
}

static void fill(char *page, uint32_t number, uint32_t salt)
{
	for (uint32_t at = 0; at < PAGE / 4; at++)
		((uint32_t *)page)[at] = word(number, at, salt);
}

static int is_right(const char *page, uint32_t number, uint32_t salt)
{
	for (uint32_t at = 0; at < PAGE / 4; at++)
		if (((const uint32_t *)page)[at] != word(number, at, salt))
			return 0;
	return 1;
}

/* Touches everything but the last GIVEN pages, so that those go out, and what had them is used for others. */
static void churn(char *memory)
{
	for (int round = 0; round < 3; round++)
		for (size_t i = 0; i < PAGES - GIVEN; i++) {
			volatile uint32_t *at = (uint32_t *)(memory + i * PAGE);
			*at = *at;
		}
}

static int read_all(int from, char *page)
{
	for (ssize_t n = 0, done = 0; done < PAGE; done += n)
		if ((n = read(from, page + done, PAGE - done)) <= 0)
			return 0;
	return 1;
}

static int to_pipe(char *given)
{
	int end[2];
	if (pipe(end) || fcntl(end[1], F_SETPIPE_SZ, 1 << 20) < 0)
		die("pipe");
	for (int i = 0; i < GIVEN; i++) {
		struct iovec one = { given + i * PAGE, PAGE };
		if (vmsplice(end[1], &one, 1, 0) != PAGE)
			die("vmsplice");
	}
	return end[0];
}

/* More than the other side's buffer takes: a loopback device copies what it delivers. */
static int to_socket(char *given)
{
	int one = 1, small = 4096, large = 8 << 20;
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof name;
	int listens = socket(AF_INET, SOCK_STREAM, 0), from = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(listens, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
	if (bind(listens, (void *)&name, len) || listen(listens, 1) || getsockname(listens, (void *)&name, &len))
		die("listen");
	if (setsockopt(from, SOL_SOCKET, SO_SNDBUFFORCE, &large, sizeof large))
		setsockopt(from, SOL_SOCKET, SO_SNDBUF, &large, sizeof large);
	if (setsockopt(from, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) || connect(from, (void *)&name, len))
		die("connect");
	int to = accept(listens, NULL, NULL);
	for (int i = 0; i < GIVEN; i++)
		if (send(from, given + i * PAGE, PAGE, MSG_ZEROCOPY | MSG_DONTWAIT) != PAGE)
			die("send");
	return to;
}

static int file_with_pages(const char *directory)
{
	int fd = open(directory, O_TMPFILE | O_RDWR | O_DIRECT, 0600);
	char *page = aligned_alloc(PAGE, PAGE);
	if (fd < 0)
		die("O_DIRECT");
	for (int i = 0; i < GIVEN; i++) {
		fill(page, i, 77);
		if (pwrite(fd, page, PAGE, (off_t)i * PAGE) != PAGE)
			die("pwrite");
	}
	return fd;
}

struct reads {
	int fd;
	char *given;
	int rounds;
};

static void *read_in_order(void *arg)
{
	struct reads *reads = arg;
	for (int round = 0; round < reads->rounds; round++)
		for (int i = 0; i < GIVEN; i++)
			if (pread(reads->fd, reads->given + i * PAGE, PAGE, (off_t)i * PAGE) != PAGE)
				die("pread");
	return NULL;
}

/* Rounds of reads that are on their way while the rest of the memory is touched. */
static void read_by_aio(int fd, char *given, char *memory)
{
	static struct iocb control[GIVEN];
	struct iocb *list[GIVEN];
	struct io_event events[GIVEN];
	aio_context_t context = 0;
	if (syscall(SYS_io_setup, GIVEN, &context))
		die("io_setup");
	for (int round = 0; round < 20; round++) {
		for (int i = 0; i < GIVEN; i++) {
			control[i] = (struct iocb){ .aio_fildes = fd, .aio_lio_opcode = IOCB_CMD_PREAD, .aio_nbytes = PAGE,
						    .aio_buf = (uintptr_t)given + i * PAGE, .aio_offset = i * PAGE };
			list[i] = &control[i];
		}
		if (syscall(SYS_io_submit, context, GIVEN, list) != GIVEN)
			die("io_submit");
		if (round % 10 == 0)
			churn(memory);
		for (long done = 0, n = 0; done < GIVEN; done += n)
			if ((n = syscall(SYS_io_getevents, context, 1, GIVEN, events, NULL)) <= 0)
				die("io_getevents");
	}
}

/* Reads into buffers that were registered, and so pinned, before the memory around them was swapped out. */
static void read_by_uring(int fd, char *given, char *memory)
{
	struct io_uring_params params = { 0 };
	int ring = syscall(SYS_io_uring_setup, 8, &params);
	struct iovec all = { given, (size_t)GIVEN * PAGE };
	if (ring < 0 || syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &all, 1))
		die("io_uring");
	char *sq = mmap(NULL, params.sq_off.array + params.sq_entries * 4, PROT_READ | PROT_WRITE, MAP_SHARED, ring,
			IORING_OFF_SQ_RING);
	char *cq = mmap(NULL, params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe), PROT_READ | PROT_WRITE,
			MAP_SHARED, ring, IORING_OFF_CQ_RING);
	struct io_uring_sqe *sqe = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
	if (sq == MAP_FAILED || cq == MAP_FAILED || (void *)sqe == MAP_FAILED)
		die("mmap");
	uint32_t *head = (uint32_t *)(cq + params.cq_off.head), *done = (uint32_t *)(cq + params.cq_off.tail);
	uint32_t *cq_mask = (uint32_t *)(cq + params.cq_off.ring_mask);
	churn(memory);
	for (int i = 0; i < GIVEN; i++) {
		*sqe = (struct io_uring_sqe){ .opcode = IORING_OP_READ_FIXED, .fd = fd, .off = (uint64_t)i * PAGE, .len = PAGE,
					      .addr = (uintptr_t)given + i * PAGE };
		uint32_t *tail = (uint32_t *)(sq + params.sq_off.tail), *mask = (uint32_t *)(sq + params.sq_off.ring_mask);
		((uint32_t *)(sq + params.sq_off.array))[*tail & *mask] = 0;
		__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
		if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1)
			die("io_uring_enter");
		while (__atomic_load_n(done, __ATOMIC_ACQUIRE) == *head)
			usleep(50);
		if (((struct io_uring_cqe *)(cq + params.cq_off.cqes))[*head & *cq_mask].res != PAGE)
			die("read");
		__atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
	}
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	what = argv[1];
	char *memory = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *given = memory + (size_t)(PAGES - GIVEN) * PAGE, page[PAGE];
	for (uint32_t i = 0; i < PAGES; i++)
		fill(memory + (size_t)i * PAGE, i, 5);
	int right = 0, from = -1, reads = 0;
	if (!strcmp(what, "pipe") || !strcmp(what, "socket")) {
		from = *what == 'p' ? to_pipe(given) : to_socket(given);
		churn(memory);
		for (uint32_t i = 0; i < GIVEN; i++)
			right += read_all(from, page) && is_right(page, PAGES - GIVEN + i, 5);
	} else {
		int fd = file_with_pages(argv[2]);
		reads = 1;
		if (!strcmp(what, "thread")) {
			struct reads in = { fd, given, 30 };
			pthread_t thread;
			pthread_create(&thread, NULL, read_in_order, &in);
			for (int i = 0; i < 3; i++)
				churn(memory);
			pthread_join(thread, NULL);
		} else if (!strcmp(what, "aio")) {
			read_by_aio(fd, given, memory);
		} else {
			read_by_uring(fd, given, memory);
		}
		churn(memory);
		for (uint32_t i = 0; i < GIVEN; i++)
			right += is_right(given + (size_t)i * PAGE, i, 77);
	}
	size_t wrong = 0;
	for (uint32_t i = 0; i < (reads ? PAGES - GIVEN : PAGES); i++)
		wrong += !is_right(memory + (size_t)i * PAGE, i, 5);
	printf("%d of %d right, %zu pages of memory wrong\n", right, GIVEN, wrong);
	return right != GIVEN || wrong;
}

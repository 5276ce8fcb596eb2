/* Operations through system calls: the kernel reads and writes the workers' memory. */
#define _GNU_SOURCE
#include "stress.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

/* Puts the next version's content for a range into the scratch buffer, from where a system call takes it there. */
static uint32_t prepare(struct worker *w, struct region *r, size_t start, size_t len)
{
	uint32_t version = next_version(r);

	for (size_t i = 0; i < len; i++)
		fill_page((uint64_t *)(w->scratch + i * PAGE), r, start + i, version);
	return version;
}

static void written(struct worker *w, struct region *r, size_t start, size_t len, uint32_t version)
{
	for (size_t i = start; i < start + len; i++) {
		set_written(r, i, version);
		check_page(w, r, i);
	}
}

static void check_scratch(struct worker *w, struct region *r, size_t start, size_t len)
{
	for (size_t i = 0; i < len; i++)
		check_copy(w, r, start + i, w->scratch + i * PAGE);
}

/* A range of at most SCRATCH_PAGES whose content is certain. */
static struct region *choose(struct worker *w, size_t *start, size_t *len)
{
	struct region *r = pick(w, PICK_WRITE);

	if (!r)
		return NULL;
	pick_range(w, r, SCRATCH_PAGES, start, len);
	for (size_t i = *start; i < *start + *len; i++)
		settle_page(w, r, i);
	return r;
}

/* Cuts a buffer in up to 5 pieces at odd places. */
static int pieces(struct worker *w, char *p, size_t bytes, struct iovec iov[5])
{
	int n = 0;

	while (bytes && n < 4) {
		size_t part = 1 + below(w, bytes);
		iov[n++] = (struct iovec){ p, part };
		p += part;
		bytes -= part;
	}
	if (bytes)
		iov[n++] = (struct iovec){ p, bytes };
	return n;
}

/* Drops the first `done` bytes of a vector. */
static void advance(struct iovec *iov, int n, size_t done)
{
	for (int i = 0; i < n; i++) {
		size_t part = iov[i].iov_len < done ? iov[i].iov_len : done;
		iov[i].iov_base = (char *)iov[i].iov_base + part;
		iov[i].iov_len -= part;
		done -= part;
	}
}

/* Sends `bytes` through a pair of descriptors which has room for them, and receives them. */
static void through(struct worker *w, int in, int out, char *from, char *to, size_t bytes)
{
	struct iovec iov[5];
	size_t sent = 0, got = 0;
	int n = pieces(w, to, bytes, iov);

	while (got < bytes) {
		if (sent < bytes) {
			ssize_t k = write(in, from + sent, bytes - sent);
			need(k > 0 || (k < 0 && (errno == EAGAIN || errno == EINTR)), "write");
			sent += k > 0 ? k : 0;
		}
		ssize_t k = readv(out, iov, n);
		need(k > 0 || (k < 0 && (errno == EAGAIN || errno == EINTR)), "readv");
		if (k > 0) {
			got += k;
			advance(iov, n, k);
		}
	}
}

static void op_pipe(struct worker *w)
{
	size_t start, len;
	struct region *r = choose(w, &start, &len);
	int fd[2];

	if (!r)
		return;
	char *at = r->base + start * PAGE;
	if (one_in(w, 2))
		need(pipe2(fd, O_CLOEXEC | O_NONBLOCK) == 0, "pipe2");
	else
		need(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fd) == 0, "socketpair");
	through(w, fd[1], fd[0], at, w->scratch, len * PAGE);
	check_scratch(w, r, start, len);
	uint32_t version = prepare(w, r, start, len);
	through(w, fd[1], fd[0], w->scratch, at, len * PAGE);
	written(w, r, start, len, version);
	close(fd[0]);
	close(fd[1]);
}

static void op_file(struct worker *w)
{
	size_t start, len;
	struct region *r = choose(w, &start, &len);
	bool direct = r && r->kind != K_MALLOC && one_in(w, 3);
	struct iovec iov[5];

	if (!r)
		return;
	int fd = open(world.tmpdir, O_TMPFILE | O_RDWR | O_CLOEXEC | (direct ? O_DIRECT : 0), 0600);
	if (fd < 0 && direct) {
		/* Not every file system has O_DIRECT. */
		direct = false;
		fd = open(world.tmpdir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	}
	need(fd >= 0, world.tmpdir);
	char *at = r->base + start * PAGE;
	ssize_t bytes = len * PAGE;
	need(pwrite(fd, at, bytes, 0) == bytes, "pwrite from a region");
	need(pread(fd, w->scratch, bytes, 0) == bytes, "pread");
	check_scratch(w, r, start, len);
	uint32_t version = prepare(w, r, start, len);
	need(pwrite(fd, w->scratch, bytes, PAGE) == bytes, "pwrite");
	if (direct || one_in(w, 2))
		need(pread(fd, at, bytes, PAGE) == bytes, "pread into a region");
	else
		need(preadv(fd, iov, pieces(w, at, bytes, iov), PAGE) == bytes, "preadv into a region");
	written(w, r, start, len, version);
	close(fd);
}

static void op_vm(struct worker *w)
{
	size_t start, len;
	struct region *r = choose(w, &start, &len);

	if (!r)
		return;
	struct iovec region = { r->base + start * PAGE, len * PAGE }, scratch = { w->scratch, len * PAGE };
	ssize_t bytes = len * PAGE, n = process_vm_readv(getpid(), &scratch, 1, &region, 1, 0);
	if (n < 0 && (errno == EPERM || errno == ENOSYS))
		return;
	need(n == bytes, "process_vm_readv");
	check_scratch(w, r, start, len);
	uint32_t version = prepare(w, r, start, len);
	need(process_vm_writev(getpid(), &scratch, 1, &region, 1, 0) == bytes, "process_vm_writev");
	written(w, r, start, len, version);
}

const struct op sys_ops[] = {
	{ "pipe", 12, op_pipe, "a region through a pipe or a socket, both ways" },
	{ "file", 8, op_file, "a region through a file (O_DIRECT, too), both ways" },
	{ "vm", 8, op_vm, "process_vm_readv and process_vm_writev on itself" },
	{ 0 },
};

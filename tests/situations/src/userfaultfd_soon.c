/* Memory that is registered with a userfaultfd of the program's own, again and again, while farpage comes to manage the
 * program's memory.
 *
 * Usage: userfaultfd_soon MIB_OF_DATA MIB_REGISTERED */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_int filled;
static size_t data;

static void *map(size_t len)
{
	return mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void *fill(void *unused)
{
	/* Many mappings, which are registered one after the other, behind the large one. */
	size_t piece = 64 << 10, page = 4096;
	for (size_t at = 0; at < data; at += piece) {
		char *memory = map(piece);
		if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE))
			break;
		memset(memory + page, 1, piece - page);
	}
	filled = 1;
	return unused;
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	data = (size_t)atoi(argv[1]) << 20;
	size_t len = (size_t)atoi(argv[2]) << 20;
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
	struct uffdio_api api = { UFFD_API, 0, 0 };
	if (fd < 0 || ioctl(fd, UFFDIO_API, &api))
		return perror("userfaultfd"), 2;
	pthread_t filler;
	char *memory = map(len);
	if (memory == MAP_FAILED || pthread_create(&filler, NULL, fill, NULL))
		return 2;
	while (!filled) {
		struct uffdio_range range = { (uintptr_t)memory, len };
		struct uffdio_register registration = { range, UFFDIO_REGISTER_MODE_MISSING, 0 };
		if (ioctl(fd, UFFDIO_REGISTER, &registration))
			return printf("register: %s\n", strerror(errno)), 1;
		if (ioctl(fd, UFFDIO_UNREGISTER, &range))
			return printf("unregister: %s\n", strerror(errno)), 1;
	}
	return puts("ok"), 0;
}

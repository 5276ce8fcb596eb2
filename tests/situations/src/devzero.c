/* devzero MIB THREADS [anonymous]: what usemem of vm-scalability does, whose memory is a private mapping of /dev/zero:
   each thread writes a mapping of its own twice, word by word, and reads it again. Then what else such a mapping may
   be. Prints what came back wrong. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static size_t bytes, wrong;
static int zero, flags = MAP_PRIVATE;

static void *use(void *thread) {
    size_t words = bytes / 8, number = (size_t)thread << 40, bad = 0;
    uint64_t *at = mmap(0, bytes, PROT_READ | PROT_WRITE, flags, zero, 0);
    if (at == MAP_FAILED) return perror("mmap"), exit(2), NULL;
    for (size_t round = 0; round < 2; round++)
        for (size_t i = 0; i < words; i++) {
            bad += i % 512 == 0 && at[i] != (round ? number + i : 0);
            at[i] = number + i + round;
        }
    for (size_t i = 0; i < words; i++) bad += at[i] != number + i + 1;
    __atomic_fetch_add(&wrong, bad, __ATOMIC_RELAXED);
    return 0;
}

static const char *of(char *at) { return at == MAP_FAILED ? strerrorname_np(errno) : "mapped"; }

int main(int argc, char **argv) {
    int threads = argc > 2 ? atoi(argv[2]) : 3, status;
    bytes = (argc > 1 ? atol(argv[1]) : 48) << 20;
    zero = open("/dev/zero", O_RDWR);
    if (argc > 3) zero = -1, flags |= MAP_ANONYMOUS;
    pthread_t all[threads];
    for (long i = 0; i < threads; i++) pthread_create(&all[i], 0, use, (void *)i);
    for (int i = 0; i < threads; i++) pthread_join(all[i], 0);
    printf("wrong words: %zu\n", wrong);

    int reads = open("/dev/zero", O_RDONLY), writes = open("/dev/zero", O_WRONLY), full = open("/dev/full", O_RDWR);
    size_t len = 1 << 20;
    char *at = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE, reads, 1 << 30);
    if (at != MAP_FAILED) memset(at, 1, len);
    printf("opened to be read, from the middle on: %s\n", of(at));
    char *fixed = mmap64(at + len / 2, len / 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, reads, 0);
    printf("in place of another: %s, %d, before it %d\n", fixed == at + len / 2 ? "there" : of(fixed), *fixed, fixed[-1]);
    printf("not in place of another: %s\n", of(mmap(at, len, PROT_READ, MAP_PRIVATE | MAP_FIXED_NOREPLACE, reads, 0)));
    printf("opened to be written: %s\n", of(mmap(0, len, PROT_READ, MAP_PRIVATE, writes, 0)));
    printf("another device: %s\n", of(mmap(0, len, PROT_READ, MAP_PRIVATE, full, 0)));
    printf("from an odd place on: %s\n", of(mmap(0, len, PROT_READ, MAP_PRIVATE, reads, 5)));
    printf("closed: %s\n", of(mmap(0, len, PROT_READ, MAP_PRIVATE, 999, 0)));
    at = mmap(0, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, zero < 0 ? open("/dev/zero", O_RDWR) : zero, 0);
    fflush(stdout);
    if (!fork()) *at = 7, _exit(0);
    wait(&status);
    printf("shared: a child's write is %d\n", *at);
    return 0;
}

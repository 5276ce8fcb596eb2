// A tree with a hostile member, which writes anything anywhere into what its processes share, while others work: they
// fill and compare their memory, fork, start programs, end threads.
//
//   liar WHERE SEED PROCESSES MIB ROUNDS     (WHERE: all, header, members, zeros, ones)
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t state;

static uint64_t random_word(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

// Until it is killed.
static void lie(const char *where) {
    const char *named = getenv("FARPAGE_TREE_FD");
    struct stat stat;
    int fd = named ? atoi(named) : -1;
    if (fd < 0 || fstat(fd, &stat)) _exit(2);
    size_t all = stat.st_size, from = 0, to = all;
    unsigned char *at = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) _exit(2);
    if (!strcmp(where, "header")) to = 1024;
    if (!strcmp(where, "members")) from = 4096, to = 4096 + 16 * 256;
    static const uint64_t odd[] = {0, 1, ~0ull, 1ull << 63, 1ull << 40, 0x7fffffff, 0x80000000, 0x40000000, 4096};
    for (;;) {
        for (int i = 0; i < 64; i++) {
            uint64_t word = random_word() & 1 ? odd[random_word() % 9] : random_word();
            size_t len = (size_t)1 << random_word() % 4, offset = (from + random_word() % (to - from)) / len * len;
            if (!strcmp(where, "zeros")) word = 0;
            if (!strcmp(where, "ones")) word = ~0ull;
            if (offset + len <= all) memcpy(at + offset, &word, len);
        }
        usleep(200);
    }
}

static size_t *words, count;

static void fill(size_t round) {
    for (size_t i = 0; i < count; i++) words[i] = i * 0x9e3779b97f4a7c15u + round;
}

static int wrong(size_t round) {
    for (size_t i = 0; i < count; i++)
        if (words[i] != i * 0x9e3779b97f4a7c15u + round) return 1;
    return 0;
}

static void *compare(void *round) { return (void *)(long)wrong((size_t)round); }

static int work(size_t mib, size_t rounds) {
    count = (mib << 20) / sizeof *words;
    words = malloc(count * sizeof *words);
    for (size_t round = 0; round < rounds; round++) {
        fill(round);
        pthread_t thread;
        void *failed;
        if (pthread_create(&thread, NULL, compare, (void *)round) || pthread_join(thread, &failed) || failed) return 3;
        pid_t child = fork();
        if (child == 0) _exit(wrong(round));
        int status = -1;
        if (child < 0 || waitpid(child, &status, 0) != child || status) return 4;
        if (system("true") || wrong(round)) return 5;
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 6) return 2;
    state = strtoull(argv[2], NULL, 0) * 0x9e3779b97f4a7c15u + 1;
    pid_t liar = fork();
    if (liar == 0) lie(argv[1]);
    int processes = atoi(argv[3]), bad = 0;
    for (int i = 0; i < processes; i++)
        if (fork() == 0) _exit(work(atoi(argv[4]), atoi(argv[5])));
    for (int i = 0; i < processes; i++) {
        int status = -1;
        pid_t ended = wait(&status);
        if (ended == liar) return printf("the liar has ended: %x\n", status), 1;
        if (status) bad++, printf("a process ended with %x\n", status);
    }
    kill(liar, SIGKILL);
    waitpid(liar, NULL, 0);
    return printf("%d wrong\n", bad), bad != 0;
}

/* A disk on which some places can never be read, or some writes store something else: the thread that needs such a page
 * gets SIGBUS, everything else is right.
 *
 * usage: lost MIB MIN_LOST      (MIN_LOST pages must be lost; 0 without farpage)
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, THREADS = 2, STACK = 256 << 10, MOST = 1 << 18 };

static struct {
    uint64_t *memory;
    size_t pages;
    long wrong;
    unsigned char gone[MOST];
    char stack[THREADS][STACK] __attribute__((aligned(64)));
} own __attribute__((aligned(4096)));
#define memory own.memory
#define pages own.pages
#define wrong own.wrong
#define gone own.gone

static __thread sigjmp_buf back;
static __thread volatile size_t reading;
static __thread volatile int armed;

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

static void on_bus(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    char *page = (char *)(memory + reading * WORDS);
    char *at = info->si_addr;
    int code = info->si_code; /* the second: a kernel built without CONFIG_MEMORY_FAILURE */
    if (!armed || at < page || at >= page + PAGE || (code != BUS_MCEERR_AR && code != BUS_ADRERR)) {
        dprintf(2, "lost: SIGBUS at %p, code %d, while reading %p (%d)\n", info->si_addr, code, (void *)page, armed);
        _exit(3);
    }
    siglongjmp(back, 1);
}

static void fill(size_t page, uint64_t round) {
    for (size_t i = 0; i < WORDS; i++) memory[page * WORDS + i] = mix(round << 48 | (page * WORDS + i));
}

static void check(size_t page, uint64_t round) {
    reading = page;
    if (sigsetjmp(back, 1)) {
        armed = 0;
        gone[page] = 1;
        return;
    }
    armed = 1;
    long bad = 0;
    for (size_t i = 0; i < WORDS; i++) bad += memory[page * WORDS + i] != mix(round << 48 | (page * WORDS + i));
    armed = 0;
    if (bad) __atomic_fetch_add(&wrong, bad, __ATOMIC_RELAXED);
}

static void *reader(void *number) {
    for (size_t page = (uintptr_t)number; page < pages; page += THREADS) check(page, 1);
    return NULL;
}

/* Locks what the program itself needs: data, stack and heap, also its libraries', and its control block. Of them, too,
 * a page may come to a place that cannot be read, and without the table by which the program calls its library not even
 * the handler works. Mappings without a name are the memory under test and the engine's. */
static int keep_own(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    if (!maps) return -1;
    char line[512], mode[5], name[3];
    unsigned long from, to;
    int failed = mlock((void *)(pthread_self() & -(uintptr_t)PAGE), 2 * PAGE) | mlock(&own, sizeof own);
    while (fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %4s %*s %*s %*s %2s", &from, &to, mode, name) == 4 && mode[1] == 'w')
            failed |= mlock((void *)from, to - from);
    fclose(maps);
    return failed;
}

/* Waits until most pages are out: on a busy machine the engine may begin after the last page was written. */
static int most_are_out(void) {
    static unsigned char present[MOST];
    for (;;) {
        size_t in = 0;
        if (mincore(memory, pages * PAGE, present)) return -1;
        for (size_t page = 0; page < pages; page++) in += present[page] & 1;
        if (in < pages / 2) return 0;
        usleep(1000);
    }
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    pages = (size_t)atol(argv[1]) * 256;
    size_t least = (size_t)atol(argv[2]);
    if (pages > MOST || keep_own()) return 2;
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 2;
    struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &action, NULL);

    for (size_t page = 0; page < pages; page++) fill(page, 1);
    if (least && most_are_out()) return 2;
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) {
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setstack(&attributes, own.stack[i], STACK);
        if (pthread_create(&threads[i], &attributes, reader, (void *)i)) return 2;
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);

    /* A forked child finds the same: lost pages lost, never empty, and the others right. */
    pid_t child = fork();
    if (child == 0) {
        if (keep_own()) _exit(4); /* locks are not inherited */
        for (size_t page = 0; page < pages; page++) check(page, 1);
        _exit(wrong != 0);
    }
    int status = -1;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        return dprintf(2, "lost: the child ended with status %#x\n", status), 1;

    /* Pages that are given up and used again in order bring zeros for their neighbours, but not for lost ones. */
    for (size_t page = 0; page + 3 < pages; page++) {
        if (gone[page] || gone[page + 1] || !gone[page + 2]) continue;
        char *two = (char *)(memory + page * WORDS);
        if (madvise(two, 2 * PAGE, MADV_DONTNEED)) return 2;
        fill(page, 1), fill(page + 1, 1);
    }

    size_t lost = 0;
    int sink[2];
    if (pipe(sink)) return 2;
    for (size_t page = 0; page < pages; page++) {
        if (!gone[page]) continue;
        lost++;
        char *at = (char *)(memory + page * WORDS);
        /* A system call is told, too; and a page that is given up is an ordinary one again. */
        ssize_t written = write(sink[1], at, 1);
        if (written != -1 || errno != EFAULT) {
            int error = errno;
            uint64_t word = memory[page * WORDS + 5], right = mix((uint64_t)1 << 48 | (page * WORDS + 5));
            dprintf(2, "lost: write of the lost page %zu at %p: %zd, errno %d; its content is %s\n", page, (void *)at, written,
                    error, word == right ? "right" : word ? "wrong" : "zero");
            return 1;
        }
        if (madvise(at, PAGE, MADV_DONTNEED)) return 2;
        if (memory[page * WORDS + 5] != 0) return dprintf(2, "lost: a discarded page is not zero\n"), 1;
        fill(page, 2);
        for (size_t i = 0; i < WORDS; i++) wrong += memory[page * WORDS + i] != mix((uint64_t)2 << 48 | (page * WORDS + i));
    }
    dprintf(1, "%zu of %zu pages lost, %ld words wrong\n", lost, pages, wrong);
    return wrong != 0 || lost < least || (least == 0 && lost != 0);
}

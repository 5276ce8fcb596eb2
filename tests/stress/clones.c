/* Children made without libc's fork(): by _Fork(), clone() with a stack of its own, and system calls through syscall().
 * Each finds every word of the memory that it inherited, and what it writes stays its own.
 *
 * usage: clones MIB ROUNDS
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STACK = 4096, CANARY = 16 << 10 };

static uint64_t *memory;
static size_t words;
static volatile int over;
static char *stack; /* of STACK bytes, above CANARY bytes that nobody may write */

pid_t _Fork(void);

/* In a child nothing but this: it may hold copies of locks that nobody will ever release. */
static int child(void *salt) {
    uint64_t was = (uintptr_t)salt;
    for (size_t i = 0; i < CANARY; i++)
        if (stack[i - CANARY] != (char)was) return 3;
    for (size_t i = 0; i < words; i++)
        if (memory[i] != (i ^ was)) return 1;
    for (size_t i = 0; i < words; i += 512) memory[i] = ~i;
    for (size_t i = 0; i < words; i++)
        if (memory[i] != (i % 512 ? i ^ was : ~i)) return 2;
    return 0;
}

/* As child, and then another child of its own, by fork(). */
static int parent_too(void *salt) {
    int status = -1;
    pid_t pid = fork();
    if (pid == 0) _exit(child(salt));
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status) return 4;
    return child(salt);
}

static pid_t make(int way, void *salt) {
    static pid_t *tid; /* in memory that is swapped out: the kernel writes there in the child */
    size_t word = words / 4 + 1;
    tid = (pid_t *)(memory + word);
    struct clone_args args = {.exit_signal = SIGCHLD};
    switch (way) {
    case 0: return (pid_t)syscall(SYS_fork);
    case 1: return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    case 2: return (pid_t)syscall(SYS_clone3, &args, sizeof args);
    case 3: {
        pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD | CLONE_CHILD_SETTID, 0, 0, tid, 0);
        if (pid == 0 && *tid != getpid()) _exit(5);
        if (pid == 0) memory[word] = word ^ (uintptr_t)salt;
        return pid;
    }
    case 4: return (pid_t)syscall(SYS_clone, SIGCHLD | CLONE_VFORK, 0, 0, 0, 0);
    case 5: return _Fork();
    case 6: return clone(child, stack + STACK, SIGCHLD, salt);
    default: return clone(child, stack + STACK, SIGCHLD | CLONE_VFORK, salt);
    }
}

/* Another thread that is in the middle of something at every fork, or forks itself. */
static void *disturb(void *unused) {
    (void)unused;
    enum { PAGE = 4096, PAGES = 2048, HOLE = 16, BETWEEN = 64 };
    static char want[PAGES];
    char *own = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own == MAP_FAILED) exit(2);
    for (size_t page = 0; !over; page = (page + 7) % PAGES) {
        own[page * PAGE]++, want[page]++;
        if (page % BETWEEN) continue;
        madvise(own + page * PAGE, HOLE * PAGE, MADV_DONTNEED);
        for (size_t i = page; i < page + HOLE; i++) want[i] = 0;
        pid_t pid = fork();
        if (pid == 0) {
            size_t wrong = 0;
            for (size_t i = 0; i < PAGES; i++) wrong += own[i * PAGE] != want[i];
            _exit(wrong != 0);
        }
        if (pid < 0) perror("clones"), exit(2);
        int status = -1;
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
        if (status) dprintf(2, "clones: a child of the other thread ended with status %#x\n", status), exit(1);
    }
    return NULL;
}

static void *work(void *rounds) {
    /* Swapped out between two uses, as the memory under test is. */
    char *all = mmap(NULL, 64 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) exit(2);
    stack = all + CANARY;
    for (uintptr_t round = 1; round <= (uintptr_t)rounds; round++) {
        for (size_t i = 0; i < CANARY; i++) all[i] = (char)round;
        for (size_t i = 0; i < words; i++) memory[i] = i ^ round;
        for (int way = 0; way < 8; way++) {
            pid_t pid = make(way, (void *)round);
            if (pid == 0) _exit(way == 2 ? parent_too((void *)round) : child((void *)round));
            if (pid < 0) perror("clones"), exit(2);
            int status = -1;
            while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
            if (status) dprintf(2, "clones: a child made in way %d ended with status %#x\n", way, status), exit(1);
        }
        for (size_t i = 0; i < words; i++)
            if (memory[i] != (i ^ round)) dprintf(2, "clones: word %zu of the parent is wrong\n", i), exit(1);
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    words = ((size_t)atol(argv[1]) << 20) / sizeof *memory;
    void *rounds = (void *)(uintptr_t)atol(argv[2]);
    memory = mmap(NULL, words * sizeof *memory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 2;
    work(rounds);
    pthread_t other, forking;
    if (pthread_create(&other, NULL, disturb, NULL) || pthread_create(&forking, NULL, work, rounds)) return 2;
    pthread_join(forking, NULL);
    over = 1;
    pthread_join(other, NULL);
    dprintf(1, "every child was right\n");
}

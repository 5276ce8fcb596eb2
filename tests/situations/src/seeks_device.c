/* Looks for a descriptor by which it can make userfaultfds that serve the kernel's faults, too: in its own table and in
 * those of its other threads. As it is told by lines on its input:
 *   watch     a thread tries all low numbers again and again, from here on
 *   seek      says what it has found
 *   fork N    children one after the other, each of which has N children at once; all look whether memory is right
 *   more      another child, which fills memory, and looks for a descriptor, too
 *   right     whether its own memory is right */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define NEW 0xAA00
#define THREAD 0x80 /* PIDFD_THREAD */

static unsigned long *memory;
static size_t words;
static atomic_int found;

/* Of words[from] on, the content. */
static void fill(unsigned long *at, size_t n)
{
    for (size_t i = 0; i < n; i++)
        at[i] = (i * 0x9e3779b97f4a7c15ul) | 1;
}

static int is_right(const unsigned long *at, size_t n)
{
    for (size_t i = 0; i < n; i += 97)
        if (at[i] != ((i * 0x9e3779b97f4a7c15ul) | 1))
            return 0;
    return 1;
}

static int makes_one(int fd)
{
    int made = ioctl(fd, NEW, O_CLOEXEC);
    if (made < 0)
        return 0;
    close(made);
    return 1;
}

static void *watch(void *unused)
{
    (void)unused;
    for (;;)
        for (int fd = 0; fd < 64; fd++)
            if (makes_one(fd))
                found = 1;
    return NULL;
}

/* How many of all tables. */
static int seek(void)
{
    int n = found;
    for (int fd = 0; fd < 1024; fd++)
        n += makes_one(fd);
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; tasks && (task = readdir(tasks));) {
        int tid = atoi(task->d_name), of = tid ? (int)syscall(SYS_pidfd_open, tid, THREAD) : -1;
        for (int fd = 0; of >= 0 && fd < 1024; fd++) {
            int copy = (int)syscall(SYS_pidfd_getfd, of, fd, 0);
            if (copy >= 0) {
                n += makes_one(copy);
                close(copy);
            }
        }
        if (of >= 0)
            close(of);
    }
    if (tasks)
        closedir(tasks);
    return n;
}

static int family(int n)
{
    int bad = !is_right(memory, words) || seek(), status;
    for (int i = 0; i < n; i++)
        if (!fork()) {
            memory[i] ^= 1;
            bad = memory[i] == (((size_t)i * 0x9e3779b97f4a7c15ul) | 1);
            memory[i] ^= 1;
            _exit(bad || !is_right(memory, words));
        }
    while (wait(&status) > 0)
        bad |= status != 0;
    return bad;
}

static int more(void)
{
    unsigned long *own = mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fill(own, words);
    return !is_right(own, words) || !is_right(memory, words) || seek();
}

int main(int argc, char **argv)
{
    char line[64];
    (void)argc;
    words = (size_t)atoi(argv[1]) << 17;
    memory = mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fill(memory, words);
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        int answer = 0;
        if (!strncmp(line, "watch", 5)) {
            pthread_t thread;
            answer = pthread_create(&thread, NULL, watch, NULL);
        } else if (!strncmp(line, "seek", 4)) {
            answer = seek();
        } else if (!strncmp(line, "right", 5)) {
            answer = is_right(memory, words);
        } else {
            int status = -1, many = !strncmp(line, "more", 4);
            for (int i = 0; i < (many ? 1 : 3) && (i == 0 || status == 0); i++) {
                fflush(stdout);
                pid_t child = fork();
                if (child == 0)
                    _exit(many ? more() : family(atoi(line + 4)));
                if (child < 0)
                    status = -errno;
                else
                    waitpid(child, &status, 0);
            }
            answer = status;
        }
        printf("%d\n", answer);
        fflush(stdout);
    }
    return 0;
}

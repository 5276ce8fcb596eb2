// Leaves its root directory or its user behind, and then does what code could do that has taken it over: fetches every
// descriptor of every thread of the process, and looks whether a path leads from it to files outside. In a child, too.
//
//   way_out HOW DIRECTORY FILE...     (as root; FILE: its path without the first slash)
#define _GNU_SOURCE
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NOBODY = 65534, WORDS = (40 << 20) / 8, DESCRIPTORS = 512, TIDS = 400 };

static size_t *words;

static int is_wrong(void) {
    for (size_t i = 0; i < WORDS; i++)
        if (words[i] != i * 0x9e3779b97f4a7c15u) return 1;
    return 0;
}

// A system call that no function of a library makes.
static long instruction(long number, const char *a) {
    long result = number;
    __asm__ volatile("syscall" : "+a"(result) : "D"(a) : "rcx", "r11", "memory");
    return result;
}

static int is_way(int fd, char **files) {
    int found = 0;
    for (char path[600]; *files; files++) {
        snprintf(path, sizeof path, "../../../../../../../../%s", *files);
        int file = openat(fd, path, O_RDONLY);
        found += file >= 0;
        if (file >= 0) close(file);
    }
    return found;
}

// Ways out by descriptors of threads whose numbers follow on the process's: engine threads are made right after it.
static int ways(char **files) {
    int found = 0;
    for (int tid = getpid(); tid < getpid() + TIDS; tid++) {
        if (syscall(SYS_tgkill, getpid(), tid, 0)) continue;
        int thread = syscall(SYS_pidfd_open, tid, O_EXCL /* PIDFD_THREAD */);
        for (int number = 0; thread >= 0 && number < DESCRIPTORS; number++) {
            struct stat stat;
            int fd = syscall(SYS_pidfd_getfd, thread, number, 0);
            if (fd < 0) continue;
            if (!fstat(fd, &stat) && S_ISDIR(stat.st_mode)) found += is_way(fd, files);
            close(fd);
        }
        close(thread);
    }
    return found;
}

static int give_up_root(void) { return setgroups(0, NULL) || setgid(NOBODY) || setuid(NOBODY); }

static int leave(const char *how, const char *dir) {
    if (!strcmp(how, "setuid")) return give_up_root();
    if (!strcmp(how, "unshare") && unshare(CLONE_NEWNS)) return 1;
    int left = !strcmp(how, "call")          ? syscall(SYS_chroot, dir)
               : !strcmp(how, "instruction") ? instruction(SYS_chroot, dir)
                                             : chroot(dir);
    return left || chdir("/") || (strcmp(how, "instruction") && give_up_root());
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    words = malloc(WORDS * sizeof *words);
    for (size_t i = 0; i < WORDS; i++) words[i] = i * 0x9e3779b97f4a7c15u;
    if (leave(argv[1], argv[2])) return perror(argv[1]), 2;
    // What the program does by an instruction is found after a while.
    while (ways(argv + 3) && !strcmp(argv[1], "instruction")) usleep(50000);
    printf("%d ways out\n", ways(argv + 3));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        printf("%d ways out of a child, %s\n", ways(argv + 3), is_wrong() ? "wrong" : "right");
        fflush(stdout);
        _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return child < 0 || status || is_wrong();
}

// Loses the inherited descriptor in one of the ways programs do, executes itself, and says whether the new program's
// memory is managed. That one also gives root up, if it has it, and forks: the child has the right bytes.
//
//   inherited fcntl|fcntl64|fioclex|cloexec|close|syscall|ioctl|spawn|instruction
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/close_range.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { MOST = 1024, WORDS = (80 << 20) / 8 };

int fcntl64(int, int, ...);

static int has_pager(void) {
    int found = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; (task = readdir(tasks));) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
        FILE *comm = fopen(path, "r");
        if (comm) {
            found |= fgets(name, sizeof name, comm) && !strcmp(name, "farpage-pager\n");
            fclose(comm);
        }
    }
    closedir(tasks);
    return found;
}

static int executed(void) {
    size_t *words = malloc(WORDS * sizeof *words);
    if (!words) return 2;
    for (size_t i = 0; i < WORDS; i++) words[i] = i * 0x9e3779b97f4a7c15u;
    puts(has_pager() ? "managed" : "not managed");
    fflush(stdout);
    if (!getuid() && (setgroups(0, NULL) || setgid(65534) || setuid(65534))) return 2;
    pid_t child = fork();
    if (child == 0) {
        for (size_t i = 0; i < WORDS; i++)
            if (words[i] != i * 0x9e3779b97f4a7c15u) _exit(1);
        _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    printf("child %x\n", status);
    return status != 0;
}

// A system call that no function of a library makes.
static void close_by_instruction(long fd) {
    long result = SYS_close;
    __asm__ volatile("syscall" : "+a"(result) : "D"(fd) : "rcx", "r11", "memory");
}

static int spawn(char **argv) {
    posix_spawn_file_actions_t actions;
    pid_t child;
    int status = -1;
    if (posix_spawn_file_actions_init(&actions) || posix_spawn_file_actions_addclose(&actions, 7) ||
        posix_spawn_file_actions_addclosefrom_np(&actions, 3) ||
        posix_spawn(&child, "/proc/self/exe", &actions, NULL, argv, environ))
        return 2;
    waitpid(child, &status, 0);
    return status != 0;
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    const char *how = argv[1];
    if (!strcmp(how, "executed")) return executed();
    char *again[] = {argv[0], "executed", NULL};
    if (!strcmp(how, "spawn")) return spawn(again);
    if (!strcmp(how, "cloexec")) close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
    for (int fd = 3; fd < MOST; fd++) {
        if (!strcmp(how, "fcntl")) fcntl(fd, F_SETFD, FD_CLOEXEC);
        if (!strcmp(how, "fcntl64")) fcntl64(fd, F_SETFD, FD_CLOEXEC);
        if (!strcmp(how, "syscall")) syscall(SYS_fcntl, fd, F_SETFD, FD_CLOEXEC);
        if (!strcmp(how, "fioclex")) ioctl(fd, FIOCLEX);
        if (!strcmp(how, "ioctl")) syscall(SYS_ioctl, fd, FIOCLEX);
        if (!strcmp(how, "close")) close(fd);
        if (!strcmp(how, "instruction")) close_by_instruction(fd);
    }
    execv("/proc/self/exe", again);
    return 2;
}

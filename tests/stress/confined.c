// Forks of a program that has confined itself since its memory is managed: the child has the right bytes all the same.
//
//   confined setuid|chroot|undumpable MIB     (as root)
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static size_t bytes;
static size_t *at;

static void fill(size_t round) {
    for (size_t i = 0; i < bytes / sizeof *at; i++) at[i] = i * 0x9e3779b97f4a7c15u + round;
}

static int wrong(size_t round) {
    for (size_t i = 0; i < bytes / sizeof *at; i++)
        if (at[i] != i * 0x9e3779b97f4a7c15u + round) return 1;
    return 0;
}

static int give_up_root(void) { return setgroups(0, NULL) || setgid(65534) || setuid(65534); }

static int confine(const char *how) {
    if (!strcmp(how, "setuid")) return give_up_root();
    if (!strcmp(how, "undumpable")) return give_up_root() || prctl(PR_SET_DUMPABLE, 0);
    char dir[] = "/tmp/confinedXXXXXX";
    int up = open("/tmp", O_PATH | O_DIRECTORY);
    // Gone from /tmp, the place lasts as long as somebody is in it.
    return up < 0 || !mkdtemp(dir) || chroot(dir) || chdir("/") || unlinkat(up, strrchr(dir, '/') + 1, AT_REMOVEDIR) || close(up);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    bytes = (size_t)atoi(argv[2]) << 20;
    at = malloc(bytes);
    if (!at) return 2;
    fill(0);
    if (confine(argv[1])) return printf("%s: %s\n", argv[1], strerror(errno)), 2;
    int dumpable = prctl(PR_GET_DUMPABLE);
    for (size_t round = 1; round < 3; round++) {
        fill(round);
        pid_t child = fork();
        if (child == 0) _exit(wrong(round) || prctl(PR_GET_DUMPABLE) != dumpable);
        int status = -1;
        waitpid(child, &status, 0);
        if (child < 0 || status || wrong(round)) return printf("%s: child %x\n", argv[1], status), 1;
    }
    return puts("ok"), 0;
}

// Runs a program under a seccomp filter as container runtimes install them: some system calls fail with an errno.
//
//   refuse ERRNO:NUMBER,NUMBER... [ERRNO:NUMBER...] -- PROGRAM [ARGUMENT...]
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define ROOM 256

static struct sock_filter code[ROOM];
static unsigned short used;

static void add(struct sock_filter one) {
    if (used == ROOM) exit(2);
    code[used++] = one;
}

int main(int argc, char **argv) {
    int i = 1;
    add((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0)); // the number
    for (; i < argc && strcmp(argv[i], "--"); i++) {
        char *at = argv[i];
        unsigned error = (unsigned)strtoul(at, &at, 10);
        while (*at) {
            unsigned number = (unsigned)strtoul(at + 1, &at, 10);
            add((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1));
            add((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error));
        }
    }
    if (i + 1 >= argc) return 2;
    add((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    struct sock_fprog program = { used, code };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return perror("seccomp"), 2;
    execvp(argv[i + 1], argv + i + 1);
    return perror(argv[i + 1]), 127;
}

// Forks in a child that is somewhere else than its parent was when farpage started, while its other threads hold
// malloc's lock and wait for pages: the forking thread needs that lock.
//
//   jail plain|chroot|mounts|pids|undumpable FORKS        (as root)
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define PIECES 40000

static volatile int over;
static void **pieces;

// A free looks at its neighbours' headers, which are mostly out, under the lock.
static void *replace(void *seed) {
    unsigned state = (unsigned)(size_t)seed;
    while (!over) {
        int i = rand_r(&state) % PIECES;
        free(__atomic_exchange_n(&pieces[i], NULL, __ATOMIC_SEQ_CST));
        void *piece = malloc(1100 + rand_r(&state) % 900);
        if (piece) memset(piece, i, 64);
        free(__atomic_exchange_n(&pieces[i], piece, __ATOMIC_SEQ_CST));
    }
    return NULL;
}

static int go(const char *where) {
    if (!strcmp(where, "plain")) return 0;
    if (!strcmp(where, "pids")) return unshare(CLONE_NEWPID);
    if (!strcmp(where, "undumpable")) return setgroups(0, NULL) || setgid(65534) || setuid(65534) || prctl(PR_SET_DUMPABLE, 0);
    if (!strcmp(where, "mounts"))
        return unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) || umount2("/proc", MNT_DETACH);
    char dir[] = "/tmp/jailXXXXXX";
    int up = open("/tmp", O_PATH | O_DIRECTORY);
    // Gone from /tmp, the place lasts as long as somebody is in it.
    return up < 0 || !mkdtemp(dir) || chroot(dir) || chdir("/") || unlinkat(up, strrchr(dir, '/') + 1, AT_REMOVEDIR) || close(up);
}

static int inside(int forks) {
    pthread_t threads[3];
    for (size_t i = 0; i < 3; i++) pthread_create(&threads[i], NULL, replace, (void *)(i + 1));
    for (int i = 0; i < forks; i++) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        int status = -1;
        if (child < 0 || waitpid(child, &status, 0) != child || status) return printf("fork %d: status %x\n", i, status), 1;
    }
    over = 1;
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    mallopt(M_ARENA_MAX, 1);
    pieces = calloc(PIECES, sizeof *pieces);
    for (int i = 0; i < PIECES; i++)
        if ((pieces[i] = malloc(1100 + rand() % 900))) memset(pieces[i], rand(), 1000);
    if (go(argv[1])) return printf("%s: %s\n", argv[1], strerror(errno)), 2;
    pid_t child = fork();
    if (child == 0) _exit(inside(atoi(argv[2])) + fflush(stdout));
    int status = -1;
    if (child < 0 || waitpid(child, &status, 0) != child || status) return printf("child: status %x\n", status), 1;
    return puts("ok"), 0;
}

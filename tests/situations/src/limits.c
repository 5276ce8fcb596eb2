// Forks of a program that is at one of its limits.
//
//   limits files SOFT HARD MIB      all descriptors below SOFT are open
//   limits size BYTES MIB           no file may be longer than BYTES
//   limits children N MIB           N children at the same time, or as many as there may be
//
// Prints what became of the children; the status is 1 if one has other memory than its parent, or ended otherwise.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static size_t words;
static size_t *memory;

static size_t content(size_t i) { return i * 0x9e3779b97f4a7c15u + 7; }

static void fill(const char *mib) {
    words = ((size_t)atoi(mib) << 20) / sizeof *memory;
    memory = malloc(words * sizeof *memory + 1);
    for (size_t i = 0; i < words; i++) memory[i] = content(i);
}

static int wrong(void) {
    for (size_t i = 0; i < words; i += 4099)
        if (memory[i] != content(i)) return 9;
    return 0;
}

static int ended(pid_t child) {
    int status = -1;
    if (waitpid(child, &status, 0) != child || status) return printf("child: status %x\n", status), 1;
    return puts("child: ok"), wrong();
}

static int one_child(void) {
    pid_t child = fork();
    if (child == 0) _exit(wrong());
    return child < 0 ? printf("fork: %s\n", strerror(errno)), wrong() : ended(child);
}

static int children(int n) {
    int go[2], made = 0, bad = 0;
    if (pipe(go)) return 2;
    for (int i = 0; i < n; i++) {
        pid_t child = fork();
        if (child == 0) {
            char end;
            close(go[1]);
            _exit(read(go[0], &end, 1) != 0 || wrong());
        }
        if (child > 0) made++;
        else if (errno != EAGAIN) bad++;
    }
    close(go[1]);
    for (int status; wait(&status) > 0;) bad += status != 0;
    printf("%s, %d bad\n", made == n ? "all children" : made ? "some children" : "no child", bad);
    return bad || wrong();
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    fill(argv[argc - 1]);
    if (!strcmp(argv[1], "children")) return children(atoi(argv[2]));
    int files = !strcmp(argv[1], "files");
    struct rlimit limit = { (rlim_t)atoi(argv[2]), (rlim_t)atoi(argv[argc > 4 ? 3 : 2]) };
    if (setrlimit(files ? RLIMIT_NOFILE : RLIMIT_FSIZE, &limit)) return perror("setrlimit"), 2;
    while (files && open("/dev/null", O_RDONLY) >= 0) {}
    return one_child();
}

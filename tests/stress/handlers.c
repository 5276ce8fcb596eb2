// Fork handlers that were there before farpage's (an allocator's, for instance) and touch memory that is swapped out:
// in the parent and in the child the program's own bytes are there.
//
//   handlers MIB ROUNDS
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KEPT = 4 << 20, PAGE = 4096 };
static unsigned char *kept;
static int wrong;

static void look(void) {
    for (size_t i = 0; kept && i < KEPT; i += PAGE)
        wrong += kept[i] != (unsigned char)(i / PAGE * 7 + 1);
}

static void early(void) { pthread_atfork(NULL, look, look); }
// Before the initialisers of all libraries.
__attribute__((section(".preinit_array"), used)) static void (*const start)(void) = early;

int main(int argc, char **argv) {
    size_t bytes = (size_t)(argc > 1 ? atoi(argv[1]) : 96) << 20;
    int rounds = argc > 2 ? atoi(argv[2]) : 4;
    unsigned char *at = malloc(KEPT), *other = malloc(bytes);
    if (!at || !other) return 2;
    for (size_t i = 0; i < KEPT; i++) at[i] = (unsigned char)(i / PAGE * 7 + 1);
    kept = at;
    for (int round = 0; round < rounds; round++) {
        for (size_t i = 0; i < bytes; i += 8) *(size_t *)(other + i) = i * 0x9e3779b97f4a7c15u + (size_t)round;
        pid_t child = fork();
        if (child == 0) {
            look();
            for (size_t i = 0; i < bytes; i += PAGE) wrong += *(size_t *)(other + i) != i * 0x9e3779b97f4a7c15u + (size_t)round;
            _exit(wrong != 0);
        }
        int status = -1;
        waitpid(child, &status, 0);
        if (child < 0 || status != 0 || wrong) return printf("round %d: child %x, %d wrong\n", round, status, wrong), 1;
    }
    return puts("ok"), 0;
}

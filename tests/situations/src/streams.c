// Forks while other threads open and close streams, whose memory libc's fork writes to in the child, and reuse it.
//
//   streams FORKS MIB
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int over;
static char *cold;
static size_t bytes;

// A stream's memory is filled by somebody else as soon as it is closed: whoever still reads it finds no pointers.
static void *open_and_close(void *seed) {
    unsigned state = (unsigned)(size_t)seed;
    FILE *streams[12] = { 0 };
    char *others[64] = { 0 };
    while (!over) {
        int at = rand_r(&state) % 12;
        if (!streams[at]) {
            streams[at] = fopen("/dev/null", "r");
            continue;
        }
        fclose(streams[at]);
        streams[at] = NULL;
        int other = rand_r(&state) % 64;
        free(others[other]);
        size_t size = 472 + rand_r(&state) % 2 * 80;
        others[other] = malloc(size);
        if (others[other]) memset(others[other], 'A', size);
    }
    return NULL;
}

static void *use_memory(void *seed) {
    unsigned state = (unsigned)(size_t)seed;
    while (!over) cold[(size_t)rand_r(&state) % bytes]++;
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    bytes = (size_t)atoi(argv[2]) << 20;
    cold = malloc(bytes);
    if (!cold) return 2;
    for (size_t i = 0; i < bytes; i += 8) cold[i] = (char)rand();
    pthread_t threads[3];
    for (size_t i = 0; i < 3; i++) pthread_create(&threads[i], NULL, i < 2 ? open_and_close : use_memory, (void *)(i + 1));
    for (int i = 0; i < atoi(argv[1]); i++) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        int status = -1;
        if (child < 0 || waitpid(child, &status, 0) != child || status) return printf("fork %d: status %x\n", i, status), 1;
        usleep(1000);
    }
    over = 1;
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    return puts("ok"), 0;
}

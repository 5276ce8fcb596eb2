// A program that limits its own memory, as solvers and servers do.
//
//   limited LIMIT_MIB MIB [data] [late] [threads] [fork] [everywhere]
//
// Fills MIB and reads it back; the limit is set before, or when half is there. LIMIT_MIB of 0: none. With `fork` a
// child reads it, too. With `everywhere` the program has something where the kernel puts nothing by itself, as
// sanitizers do. Prints a sum; the status is 3 if there is no memory.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static size_t mib;
static char **pieces;

static unsigned long word(size_t i, size_t k) { return (i << 20 | k) * 2654435761u; }

static void *fill(void *from)
{
    for (size_t i = (size_t)from; i < mib / 2 + ((size_t)from ? mib / 2 : 0); i++) {
        pieces[i] = malloc(1 << 20);
        if (!pieces[i]) {
            printf("no memory after %zu MiB\n", i);
            fflush(stdout);
            _exit(3);
        }
        for (size_t k = 0; k < 1 << 20; k += 64) *(unsigned long *)(pieces[i] + k) = word(i, k);
    }
    return NULL;
}

static int check(void)
{
    unsigned long sum = 0;
    for (size_t i = 0; i < mib / 2 * 2; i++)
        for (size_t k = 0; k < 1 << 20; k += 64) {
            unsigned long found = *(unsigned long *)(pieces[i] + k);
            if (found != word(i, k)) return printf("wrong at %zu, %zu\n", i, k), 1;
            sum += found;
        }
    return printf("%lu\n", sum), fflush(stdout), 0;
}

int main(int argc, char **argv)
{
    if (argc < 3) return 2;
    int data = 0, late = 0, threads = 0, forks = 0;
    for (int i = 3; i < argc; i++) {
        data |= !strcmp(argv[i], "data");
        late |= !strcmp(argv[i], "late");
        threads |= !strcmp(argv[i], "threads");
        forks |= !strcmp(argv[i], "fork");
        if (!strcmp(argv[i], "everywhere")
            && mmap((void *)(1ul << 45), 1ul << 43, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0)
                   == MAP_FAILED)
            return perror("mmap"), 2;
    }
    mib = (size_t)atol(argv[2]);
    pieces = calloc(mib, sizeof *pieces);
    struct rlimit limit = { (rlim_t)atol(argv[1]) << 20, (rlim_t)atol(argv[1]) << 20 };
    int what = data ? RLIMIT_DATA : RLIMIT_AS;
    if (limit.rlim_cur && !late && setrlimit(what, &limit)) return perror("setrlimit"), 2;
    pthread_t other;
    if (threads && pthread_create(&other, NULL, fill, NULL)) return puts("no thread"), 3;
    if (threads) pthread_join(other, NULL);
    else fill(NULL);
    if (limit.rlim_cur && late && setrlimit(what, &limit)) return perror("setrlimit"), 2;
    fill((void *)(mib / 2));
    if (forks) {
        fflush(stdout);
        pid_t child = fork();
        if (child < 0) return perror("fork"), 2;
        if (child == 0) _exit(check());
        int status;
        if (waitpid(child, &status, 0) != child || status) return printf("child: %x\n", status), 1;
    }
    return check();
}

/* Keeps memory of which it knows every word, and looks at it when it is told to.
 *
 * usage: keeper MIB          reads commands: check, fork, fill, end
 *        keeper MIB COMMAND...
 *
 * check: prints how many pages are right, lost (SIGBUS) and wrong. fork: a child does the same, after the parent has
 * written to every fourth page.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8 };

static uint64_t *memory;
static size_t pages;
static uint64_t round_of[1 << 16];
static sigjmp_buf back;

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

/* Every fourth page does not compress. */
static uint64_t word(size_t page, size_t i) {
    uint64_t bits = mix(round_of[page] << 40 | page << 10 | (page % 4 ? i % 32 : i));
    return bits;
}

static void fill(size_t step) {
    for (size_t page = 0; page < pages; page += step) {
        round_of[page]++;
        for (size_t i = 0; i < WORDS; i++) memory[page * WORDS + i] = word(page, i);
    }
}

static void on_bus(int signal) {
    (void)signal;
    siglongjmp(back, 1);
}

static void check(const char *who) {
    static volatile size_t page, right, lost, wrong;
    right = lost = wrong = 0;
    for (page = 0; page < pages; page++) {
        /* Not in order: so that nothing is read ahead. */
        size_t at = page * 7919 % pages;
        if (sigsetjmp(back, 1)) {
            lost++;
            continue;
        }
        size_t i = 0;
        while (i < WORDS && memory[at * WORDS + i] == word(at, i)) i++;
        if (i == WORDS) right++;
        else wrong++;
    }
    printf("%s: %zu right, %zu lost, %zu wrong\n", who, right, lost, wrong);
    fflush(stdout);
}

static void run(const char *command) {
    if (!strcmp(command, "check")) check("keeper");
    if (!strcmp(command, "fill")) fill(1), puts("filled");
    if (!strcmp(command, "fork")) {
        pid_t child = fork();
        if (child == 0) {
            fill(3);
            check("child");
            _exit(0);
        }
        fill(4);
        waitpid(child, NULL, 0);
        puts("forked");
    }
    fflush(stdout);
}

int main(int argc, char **argv) {
    pages = strtoul(argv[1], NULL, 0) << 8;
    /* What it needs itself stays. */
    if (mlockall(MCL_CURRENT)) perror("mlockall");
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || pages > sizeof round_of / sizeof *round_of) return 2;
    struct sigaction action = {.sa_handler = on_bus, .sa_flags = SA_NODEFER};
    sigaction(SIGBUS, &action, NULL);
    fill(1);
    puts("filled");
    fflush(stdout);
    for (int i = 2; i < argc; i++) run(argv[i]);
    char line[64];
    while (argc == 2 && fgets(line, sizeof line, stdin) && strcmp(line, "end\n")) {
        line[strcspn(line, "\n")] = 0;
        run(line);
    }
    return 0;
}

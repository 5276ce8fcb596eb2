/* A process of a tree: fills memory, waits, and finds it as it was, again and again.
 *
 * Usage: member MB ROUNDS PAUSE_MS [FORKS]. With FORKS, so many children are forked when the memory is filled; each
 * writes a tenth of it, and checks all of it. Says "right", or what is wrong, with status 1.
 */
#include <err.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS = 512 };

static uint64_t *memory;
static size_t pages;

static void fill(size_t from, size_t to, uint64_t seed)
{
    for (size_t i = from; i < to; i++)
        for (size_t word = 0; word < WORDS; word += 64)
            memory[i * WORDS + word] = seed * 0x9e3779b97f4a7c15u + i * WORDS + word;
}

static void check(size_t from, size_t to, uint64_t seed)
{
    for (size_t i = from; i < to; i++)
        for (size_t word = 0; word < WORDS; word += 64)
            if (memory[i * WORDS + word] != seed * 0x9e3779b97f4a7c15u + i * WORDS + word)
                errx(1, "page %zu is wrong", i);
}

int main(int argc, char **argv)
{
    if (argc < 4)
        errx(2, "usage: member MB ROUNDS PAUSE_MS [FORKS]");
    pages = (size_t)atoi(argv[1]) * 256;
    int rounds = atoi(argv[2]), pause = atoi(argv[3]), forks = argc > 4 ? atoi(argv[4]) : 0;
    if (!(memory = malloc(pages * WORDS * sizeof *memory)))
        err(2, "malloc");
    for (int round = 0; round < rounds; round++) {
        fill(0, pages, round);
        for (int i = 1; i <= forks; i++) {
            pid_t child = fork();
            if (child < 0)
                err(2, "fork");
            if (child)
                continue;
            fill(0, pages / 10, round + 100 * i);
            usleep(pause * 1000);
            check(0, pages / 10, round + 100 * i);
            check(pages / 10, pages, round);
            _exit(0);
        }
        usleep(pause * 1000);
        check(0, pages, round);
        for (int status; wait(&status) > 0;)
            if (status)
                errx(1, "a child ended with %d", status);
    }
    puts("right");
    return 0;
}

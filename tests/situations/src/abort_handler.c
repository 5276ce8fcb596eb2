// A program with a handler for SIGABRT that looks at all its memory, as crash reporters do.
//
//     abort_handler MB [full]
//
// Fills memory, each page with its number, prints where it is, waits for a line, and reads all of it. full: nothing
// more can be written to standard error, which is a pipe.
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static uint64_t *data;
static size_t pages;

static void handler(int signal)
{
    (void)signal;
    volatile uint64_t sum = 0;
    for (size_t i = 0; i < pages; i++)
        sum += data[i * 512];
    _exit(77);
}

int main(int argc, char **argv)
{
    pages = strtoul(argv[1], NULL, 0) << 8;
    data = aligned_alloc(4096, pages * 4096);
    for (size_t i = 0; i < pages * 512; i += 2) {
        data[i] = 0x6661727061676500;
        data[i + 1] = i / 512;
    }
    signal(SIGABRT, handler);
    if (argc > 2) {
        int flags = fcntl(2, F_GETFL);
        fcntl(2, F_SETFL, flags | O_NONBLOCK);
        while (write(2, "x", 1) == 1) {
        }
        fcntl(2, F_SETFL, flags);
    }
    printf("%p\n", (void *)data);
    fflush(stdout);
    getchar();
    size_t wrong = 0;
    for (size_t i = 0; i < pages * 512; i += 2)
        wrong += data[i] != 0x6661727061676500 || data[i + 1] != i / 512;
    printf("%zu words are wrong\n", wrong);
    return 0;
}

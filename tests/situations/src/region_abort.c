// A program with regions that unmaps a page of one and pins it, which ends it with a message, and has a handler for
// SIGABRT that looks at all of the region.
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "farpage.h"

enum { MB = 1 << 20, PAGE = 4096, BYTES = 16 * MB };

static volatile char *data;

static void handler(int signal)
{
    (void)signal;
    for (size_t i = 0; i < BYTES; i += PAGE)
        if (i != 2 * MB)
            data[i] += 1;
    _exit(77);
}

int main(void)
{
    fp_config config;
    fp_pager *pager;
    fp_region *region;
    fp_config_init(&config);
    config.budget_bytes = 4 * MB;
    if (fp_pager_new(&config, &pager) || fp_region_new(pager, BYTES, &region)) {
        printf("%s\n", fp_last_error());
        return 3;
    }
    data = fp_region_data(region);
    for (size_t i = 0; i < BYTES; i++)
        data[i] = i * 2654435761u >> 24;
    signal(SIGABRT, handler);
    munmap((void *)(data + 2 * MB), PAGE);
    // It was swapped out long ago: whoever brings it back finds that its place is gone.
    fp_pin *pin;
    printf("pinned: %d\n", fp_region_pin(region, 2 * MB, PAGE, &pin));
    return 4;
}

// A program with a pager of regions that closes all its descriptors, as daemons do, and then opens files of its own
// under the same numbers: nothing of the regions may be lost, and nothing may happen to the files.
//
//     region_descriptors MODE DEVICES CLOSE INHERIT DIRECTORY
//
// MODE: signal or thread. CLOSE: range (one system call), loop (one after the other) or none. INHERIT: 1, forked
// children have the regions too, before and after; else 0. Prints what is wrong; nothing if all is well.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "farpage.h"

enum { MB = 1 << 20, FILES = 40, BYTES = 12 * MB };

static void check(fp_status status, const char *what)
{
    if (status != FP_OK) {
        printf("%s: %s\n", what, fp_last_error());
        exit(3);
    }
}

// Some pages compress, some do not.
static uint64_t word(size_t i, uint64_t version)
{
    uint64_t x = (i >> 9) & 1 ? i >> 4 : i;
    x = (x + version * 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9;
    return x ^ x >> 29;
}

static void fill(uint64_t *data, size_t from, size_t to, uint64_t version)
{
    for (size_t i = from / 8; i < to / 8; i++)
        data[i] = word(i, version);
}

static int verify(const char *who, const uint64_t *data, size_t from, size_t to, uint64_t version)
{
    size_t wrong = 0, zero = 0;
    for (size_t i = from / 8; i < to / 8; i++) {
        wrong += data[i] != word(i, version);
        zero += data[i] == 0;
    }
    if (wrong)
        printf("%s: %zu words are wrong, %zu of all are zero\n", who, wrong, zero);
    fflush(stdout);
    return wrong != 0;
}

// A child that has the regions, and a child of it; both write to them.
static int forked(uint64_t *data)
{
    int status;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int bad = verify("child", data, 0, BYTES, 2);
        fill(data, 0, BYTES, 3);
        pid_t grandchild = fork();
        if (grandchild == 0)
            _exit(verify("grandchild", data, 0, BYTES, 3));
        bad |= waitpid(grandchild, &status, 0) != grandchild || status != 0;
        _exit(bad | verify("child after its own writes", data, 0, BYTES, 3));
    }
    return waitpid(child, &status, 0) != child || status != 0;
}

int main(int argc, char **argv)
{
    if (argc != 6)
        return 2;
    const char *how = argv[3], *dir = argv[5];
    fp_config config;
    fp_pager *pager, *second;
    fp_region *region, *other;
    fp_config_init(&config);
    config.budget_bytes = 4 * MB;
    config.swap = argv[2];
    config.fault_mode = strcmp(argv[1], "thread") == 0 ? FP_FAULT_THREAD : FP_FAULT_SIGNAL;
    config.inherit = atoi(argv[4]);
    check(fp_pager_new(&config, &pager), "pager");
    check(fp_region_new(pager, BYTES, &region), "region");
    uint64_t *data = fp_region_data(region);
    fill(data, 0, BYTES, 1);

    if (strcmp(how, "range") == 0)
        syscall(SYS_close_range, 3u, ~0u, 0);
    else if (strcmp(how, "loop") == 0)
        for (int fd = 3; fd < 1024; fd++)
            close(fd);
    int files[FILES];
    struct stat before[FILES];
    for (int i = 0; i < FILES; i++) {
        char name[4096];
        snprintf(name, sizeof name, "%s/%d", dir, i);
        files[i] = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
        if (files[i] < 0 || write(files[i], "my database\n", 12) != 12 || fstat(files[i], &before[i]))
            return 4;
    }

    int bad = verify("after the close", data, 0, BYTES, 1);
    fill(data, 0, BYTES, 2);
    bad |= verify("after new writes", data, 0, BYTES, 2);
    // What the interface does with descriptors.
    fp_pin *pin;
    check(fp_region_prefetch(region, 4 * MB, MB), "prefetch");
    check(fp_region_pin(region, MB, MB, &pin), "pin");
    bad |= verify("pinned", data, MB, 2 * MB, 2);
    fp_unpin(pin);
    check(fp_region_new(pager, BYTES, &other), "a new region");
    fill(fp_region_data(other), 0, BYTES, 5);
    bad |= verify("a new region", fp_region_data(other), 0, BYTES, 5);
    check(fp_region_advise(other, 0, BYTES, FP_DONTNEED), "advise");
    bad |= *(uint64_t *)fp_region_data(other) != 0;
    fp_region_free(other);
    if (config.inherit && forked(data)) {
        printf("a child went wrong\n");
        bad = 1;
    }
    bad |= verify("at the end", data, 0, BYTES, 2);
    fp_region_free(region);
    fp_pager_free(pager);
    // A swap file with a name is nobody's now.
    check(fp_pager_new(&config, &second), "a new pager");
    fp_pager_free(second);

    for (int i = 0; i < FILES; i++) {
        struct stat now;
        char text[64];
        if (fstat(files[i], &now) || now.st_ino != before[i].st_ino || now.st_size != 12 ||
            pread(files[i], text, sizeof text, 0) != 12 || memcmp(text, "my database\n", 12)) {
            printf("the program's file with descriptor %d is not what it was\n", files[i]);
            bad = 1;
        }
    }
    return bad;
}

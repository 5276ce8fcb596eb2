/* Every function of farpage.h, with what it refuses. Run by c.rs; the line of the first failure is printed. */
#define _GNU_SOURCE
#include <errno.h>
#include <farpage.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(x)                                                                         \
    do {                                                                                 \
        if (!(x)) {                                                                      \
            fprintf(stderr, "line %d: %s; last error: %s\n", __LINE__, #x, fp_last_error()); \
            exit(1);                                                                     \
        }                                                                                \
    } while (0)

#define MIB ((size_t)1 << 20)
#define BYTES (24 * MIB)
#define THREADS 4

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

static fp_pager *new_pager(const char *swap, uint32_t mode)
{
    fp_config config;
    fp_pager *pager;
    CHECK(fp_config_init(&config) == FP_OK);
    config.budget_bytes = 8 * MIB;
    config.swap = swap;
    config.fault_mode = mode;
    fp_status status = fp_pager_new(&config, &pager);
    if (status == FP_ERR_USERFAULTFD && mode == FP_FAULT_THREAD)
        return NULL;
    CHECK(status == FP_OK && pager);
    return pager;
}

static void refusals(void)
{
    CHECK(fp_config_init(NULL) == FP_ERR_NULL);
    fp_config config;
    fp_pager *pager = (fp_pager *)1;
    CHECK(fp_pager_new(NULL, NULL) == FP_ERR_NULL);
    fp_config_init(&config);
    config.budget_bytes = FP_BUDGET_MIN - 1;
    CHECK(fp_pager_new(&config, &pager) == FP_ERR_BUDGET && !pager);
    CHECK(strstr(fp_last_error(), "4194303"));
    config.budget_bytes = UINT64_MAX;
    CHECK(fp_pager_new(&config, &pager) == FP_ERR_BUDGET);
    fp_config_init(&config);
    config.size += 8;
    CHECK(fp_pager_new(&config, &pager) == FP_ERR_CONFIG);
    fp_config_init(&config);
    config.fault_mode = 7;
    CHECK(fp_pager_new(&config, &pager) == FP_ERR_CONFIG);
    fp_config_init(&config);
    config.verify = 2;
    CHECK(fp_pager_new(&config, &pager) == FP_ERR_CONFIG);
    fp_config_init(&config);
    config.system_calls = 2;
    CHECK(fp_pager_new(&config, &pager) == FP_ERR_CONFIG);
    fp_config_init(&config);
    config.inherit = 2;
    CHECK(fp_pager_new(&config, &pager) == FP_ERR_CONFIG);
    config.inherit = 1;
    config.fault_mode = FP_FAULT_THREAD;
    CHECK(fp_pager_new(&config, &pager) == FP_ERR_CONFIG);
    const char *bad[] = { "tape", ";", "", "file:/nowhere/at/all", "zram,alg=gzip", "\xff" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fp_config_init(&config);
        config.swap = bad[i];
        fp_status status = fp_pager_new(&config, &pager);
        CHECK(status == FP_ERR_DEVICE || (i == 5 && status == FP_ERR_CONFIG));
        CHECK(!pager && strlen(fp_last_error()) > 10);
    }
    fp_region *region = (fp_region *)1;
    fp_pin *pin = (fp_pin *)1;
    fp_stats stats;
    CHECK(fp_region_new(NULL, 1, &region) == FP_ERR_NULL);
    CHECK(fp_pager_stats(NULL, &stats, sizeof stats) == FP_ERR_NULL);
    CHECK(fp_pager_resize_budget(NULL, 1) == FP_ERR_NULL);
    CHECK(fp_region_advise(NULL, 0, 0, FP_NORMAL) == FP_ERR_NULL);
    CHECK(fp_region_prefetch(NULL, 0, 0) == FP_ERR_NULL);
    CHECK(fp_region_pin(NULL, 0, 0, &pin) == FP_ERR_NULL && !pin);
    CHECK(fp_region_data(NULL) == NULL && fp_region_size(NULL) == 0);
    CHECK(!fp_handle_sigbus(NULL, NULL));
    fp_pager_free(NULL);
    fp_region_free(NULL);
    fp_unpin(NULL);

    pager = new_pager(NULL, FP_FAULT_SIGNAL);
    CHECK(fp_region_new(pager, 1, NULL) == FP_ERR_NULL);
    CHECK(fp_region_new(pager, 0, &region) == FP_ERR_ZERO_SIZE && !region);
    CHECK(fp_region_new(pager, SIZE_MAX, &region) == FP_ERR_TOO_LARGE && !region);
    CHECK(fp_region_new(pager, (size_t)1 << 50, &region) == FP_ERR_TOO_LARGE);
    CHECK(fp_region_new(pager, 16 * MIB, &region) == FP_OK);
    CHECK(fp_pager_stats(pager, NULL, 0) == FP_ERR_NULL);
    CHECK(fp_pager_resize_budget(pager, 1) == FP_ERR_BUDGET);
    CHECK(fp_region_advise(region, 0, 1, 99) == FP_ERR_ADVICE);
    CHECK(fp_region_advise(region, 1, 16 * MIB, FP_RANDOM) == FP_ERR_RANGE);
    CHECK(fp_region_prefetch(region, SIZE_MAX, 2) == FP_ERR_RANGE);
    CHECK(fp_region_pin(region, 0, 1, NULL) == FP_ERR_NULL);
    CHECK(fp_region_pin(region, 17 * MIB, 0, &pin) == FP_ERR_RANGE && !pin);
    CHECK(fp_region_pin(region, 0, 16 * MIB, &pin) == FP_ERR_PIN_LIMIT && !pin);
    CHECK(fp_pager_stats(pager, &stats, sizeof stats) == FP_OK && stats.pinned_bytes == 0);
    struct { fp_stats known; uint64_t more[2]; } later;
    memset(&later, 0xff, sizeof later);
    CHECK(fp_pager_stats(pager, &later.known, sizeof later) == FP_OK);
    CHECK(later.known.budget_bytes == 8 * MIB && later.more[0] == 0 && later.more[1] == 0);
    uint64_t first[3] = { 1, 2, 3 };
    CHECK(fp_pager_stats(pager, (fp_stats *)first, 16) == FP_OK && first[0] == 8 * MIB && first[2] == 3);
    pid_t child = fork();
    if (child == 0)
        _exit(fp_region_prefetch(region, 0, 1) == FP_ERR_FORKED && fp_region_new(pager, 1, &region) == FP_ERR_FORKED ? 0 : 9);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    fp_region_free(region);
    fp_pager_free(pager);

    for (int code = 0; code <= FP_ERR_UNREADABLE; code++)
        for (int other = 0; other < code; other++)
            CHECK(strcmp(fp_strerror(code), fp_strerror(other)) != 0);
    CHECK(strcmp(fp_strerror(-1), "unknown error code") == 0);
    CHECK(strcmp(fp_strerror(FP_ERR_SYSTEM_CALLS + 1), "unknown error code") == 0);
}

struct work {
    uint64_t *words;
    uint64_t seed;
};

/* Every thread owns every THREADS-th page. */
static void *threads(void *argument)
{
    struct work *work = argument;
    for (uint64_t round = 0; round < 3; round++)
        for (size_t page = work->seed; page < BYTES / 4096; page += THREADS) {
            uint64_t *words = work->words + page * 512;
            for (size_t i = 0; i < 512; i++) {
                if (words[i] != (round ? mix(page * 64 + i % 64 + (round - 1)) : 0))
                    return words + i;
                words[i] = mix(page * 64 + i % 64 + round);
            }
        }
    return NULL;
}

static void memory(const char *swap, uint32_t mode)
{
    fp_pager *pager = new_pager(swap, mode);
    if (!pager) {
        fprintf(stderr, "skipped: %s\n", fp_last_error());
        return;
    }
    fp_region *region;
    CHECK(fp_region_new(pager, BYTES, &region) == FP_OK && fp_region_size(region) == BYTES);
    uint64_t *words = fp_region_data(region);
    CHECK((uintptr_t)words % 4096 == 0);
    pthread_t thread[THREADS];
    struct work work[THREADS];
    for (int i = 0; i < THREADS; i++) {
        work[i] = (struct work){ words, i };
        CHECK(pthread_create(&thread[i], NULL, threads, &work[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        void *wrong;
        CHECK(pthread_join(thread[i], &wrong) == 0 && wrong == NULL);
    }
    /* The pager's own handle may go first. */
    fp_stats stats;
    CHECK(fp_pager_stats(pager, &stats, sizeof stats) == FP_OK && stats.pswpin > 0 && stats.pswpout > 0);
    CHECK(fp_pager_resize_budget(pager, 12 * MIB) == FP_OK);
    fp_pager_free(pager);

    int fds[2];
    CHECK(pipe(fds) == 0);
    /* The budget is smaller than the region, so some page of it is not in memory. */
    size_t refused = 0;
    for (size_t at = 0; mode == FP_FAULT_SIGNAL && at < BYTES / 8; at += 512) {
        char back[1024];
        ssize_t n = write(fds[1], words + at, sizeof back);
        CHECK(n < 0 ? errno == EFAULT : n == sizeof back && read(fds[0], back, sizeof back) == n);
        refused += n < 0;
    }
    CHECK(mode != FP_FAULT_SIGNAL || refused > 0);
    fp_pin *pin;
    CHECK(fp_region_pin(region, 0, MIB, &pin) == FP_OK);
    CHECK(write(fds[1], words, 1024) == 1024);
    CHECK(fp_region_advise(region, 0, 2 * MIB, FP_DONTNEED) == FP_OK);
    CHECK(words[5] == mix(5 + 2) && words[MIB / 8 + 5] == 0);
    fp_unpin(pin);
    CHECK(fp_region_advise(region, 0, 2 * MIB, FP_DONTNEED) == FP_OK && words[5] == 0);
    CHECK(fp_region_prefetch(region, 4 * MIB, MIB) == FP_OK);
    CHECK(fp_region_advise(region, 5 * MIB, MIB, FP_WILLNEED) == FP_OK);
    CHECK(words[5 * MIB / 8 + 7] == mix(5 * MIB / 4096 * 64 + 7 + 2));
    /* A pinned part outlives the region's handle. */
    CHECK(fp_region_pin(region, 8 * MIB, 4096, &pin) == FP_OK);
    fp_region_free(region);
    CHECK(words[MIB + 9] == mix(MIB / 512 * 64 + 9 + 2));
    fp_unpin(pin);
    close(fds[0]);
    close(fds[1]);
}

/* A child that has the regions too. */
static void inherited(void)
{
    fp_config config;
    fp_pager *pager;
    fp_region *region;
    fp_config_init(&config);
    config.budget_bytes = 8 * MIB;
    config.verify = 1;
    config.inherit = 1;
    config.system_calls = 1;
    CHECK(fp_pager_new(&config, &pager) == FP_OK && fp_region_new(pager, BYTES, &region) == FP_OK);
    uint64_t *words = fp_region_data(region);
    for (size_t i = 0; i < BYTES / 8; i += 64)
        words[i] = mix(i);
    /* Through a file and back, most of it swapped out. */
    FILE *file = tmpfile();
    CHECK(file && write(fileno(file), words, BYTES) == (ssize_t)BYTES);
    memset(words, 0, BYTES);
    CHECK(pread(fileno(file), words, BYTES, 0) == (ssize_t)BYTES);
    fclose(file);
    pid_t child = fork();
    for (size_t i = 0; i < BYTES / 8; i += 64) {
        CHECK(words[i] == mix(i));
        words[i] = mix(i + (child == 0));
    }
    for (size_t i = 0; i < BYTES / 8; i += 64)
        CHECK(words[i] == mix(i + (child == 0)));
    fp_region_free(region);
    fp_pager_free(pager);
    if (child == 0)
        _exit(0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static sigjmp_buf out;

static void leave(int number)
{
    (void)number;
    siglongjmp(out, 1);
}

/* Calls that a handler leaves by longjmp hold nothing any more after the next call of their thread, and leave nothing
 * else behind: the pager can go. */
static void left_by_longjmp(void)
{
    fp_config config;
    CHECK(fp_config_init(&config) == FP_OK);
    config.budget_bytes = 8 << 20;
    config.system_calls = 1;
    fp_pager *pager;
    fp_region *region;
    CHECK(fp_pager_new(&config, &pager) == FP_OK && fp_region_new(pager, BYTES, &region) == FP_OK);
    uint64_t *words = fp_region_data(region);
    for (size_t i = 0; i < BYTES / 8; i += 64)
        words[i] = mix(i);
    int ends[2];
    CHECK(pipe(ends) == 0);
    struct sigaction action = { .sa_handler = leave }, before;
    CHECK(sigaction(SIGALRM, &action, &before) == 0);
    static volatile size_t round, were_held;
    fp_stats stats;
    for (round = 0; round < 2000; round++) {
        if (sigsetjmp(out, 1) == 0) {
            /* Also in the middle of what brings the memory in. */
            struct itimerval soon = { .it_value = { .tv_usec = 1 + round % 40 * 5 } };
            CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
            /* Nobody writes. Without the timer it would wait for ever. */
            (void)!read(ends[0], words + round % 500 * 5000, 8192);
            CHECK(!"read has returned");
        }
        CHECK(fp_pager_stats(pager, &stats, sizeof stats) == FP_OK);
        were_held += stats.pinned_bytes > 0;
    }
    CHECK(were_held > 0);
    CHECK(write(ends[1], words, 8) == 8);
    CHECK(fp_pager_stats(pager, &stats, sizeof stats) == FP_OK && stats.pinned_bytes == 0);
    CHECK(sigaction(SIGALRM, &before, NULL) == 0);
    for (size_t i = 0; i < BYTES / 8; i += 64)
        CHECK(words[i] == mix(i));
    close(ends[0]);
    close(ends[1]);
    fp_region_free(region);
    fp_pager_free(pager);
}

static volatile sig_atomic_t others;
static char *other;

static void own_handler(int number, siginfo_t *info, void *context)
{
    (void)number;
    if (fp_handle_sigbus(info, context))
        return;
    others++;
    mmap(other, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

/* A handler that comes after the library's, and passes on what is not its own. */
static void late_handler(void)
{
    struct sigaction action = { .sa_sigaction = own_handler, .sa_flags = SA_SIGINFO };
    struct sigaction before;
    sigfillset(&action.sa_mask);
    fp_pager *pager = new_pager(NULL, FP_FAULT_SIGNAL);
    CHECK(sigaction(SIGBUS, &action, &before) == 0);
    fp_region *region;
    CHECK(fp_region_new(pager, BYTES, &region) == FP_OK);
    char *bytes = fp_region_data(region);
    for (size_t i = 0; i < BYTES; i += 4096)
        bytes[i] = (char)(i >> 12);
    for (size_t i = 0; i < BYTES; i += 4096)
        CHECK(bytes[i] == (char)(i >> 12));
    CHECK(others == 0);
    FILE *empty = tmpfile();
    other = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fileno(empty), 0);
    CHECK(other != MAP_FAILED && *(volatile char *)other == 0 && others == 1);
    fclose(empty);
    CHECK(sigaction(SIGBUS, &before, NULL) == 0);
    fp_region_free(region);
    fp_pager_free(pager);
}

int main(void)
{
    CHECK(strcmp(fp_last_error(), "") == 0);
    refusals();
    memory(NULL, FP_FAULT_SIGNAL);
    memory("file:/tmp", FP_FAULT_SIGNAL);
    memory("zram,alg=zstd;file:/tmp,size=1G", FP_FAULT_THREAD);
    inherited();
    left_by_longjmp();
    late_handler();
    return 0;
}

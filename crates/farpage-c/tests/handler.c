/* A signal handler that touches a region while the interrupted thread is inside malloc, or inside of farpage, and others fork:
 * nothing that the fault waits for may wait for either, nor for a fork that waits for them. Fails by not ending. */
#define _POSIX_C_SOURCE 200809L
#include <farpage.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, BYTES = 32 << 20, SIGNALS = 60, BLOCKS = 256 };

static volatile unsigned char *memory;
static volatile uint32_t dice = 1;
static volatile sig_atomic_t handled, wrong, over;
static pthread_t interrupted;

static unsigned char content(size_t page, size_t i) {
    return (unsigned char)(((page * PAGE + i) * 2654435761u) >> 20);
}

static void on_signal(int signal) {
    (void)signal;
    for (int i = 0; i < 2; i++) {
        dice = dice * 1664525u + 1013904223u;
        size_t page = (dice >> 8) % (BYTES / PAGE);
        wrong += memory[page * PAGE + 8] != content(page, 8);
        memory[page * PAGE + 9]++; /* or it need not be stored again */
    }
    handled = handled + 1;
}

static void *sender(void *unused) {
    (void)unused;
    for (int sent = 0; sent < SIGNALS; sent++) {
        int before = handled;
        /* So that the thread is back in its work. */
        nanosleep(&(struct timespec){0, 500000}, NULL);
        pthread_kill(interrupted, SIGUSR1);
        while (handled == before) {
        }
    }
    over = 1;
    return NULL;
}

/* Its fork waits for malloc's locks. The child has no region, and is told so. */
static void *forker(void *region) {
    while (!over) {
        pid_t pid = fork();
        if (pid == 0) _exit(fp_region_prefetch(region, 0, PAGE) != FP_ERR_FORKED || !*fp_last_error());
        int status = -1;
        if (pid < 0 || waitpid(pid, &status, 0) != pid || status) wrong = wrong + 1;
    }
    return NULL;
}

static void churn_malloc(uint32_t x) {
    static void *blocks[BLOCKS];
    void **block = &blocks[(x >> 8) % BLOCKS];
    free(*block);
    *block = malloc(1500 + (x >> 16) % 60000);
}

static void churn_farpage(uint32_t x, fp_region *region) {
    fp_pin *pin;
    if (fp_region_pin(region, x % BYTES / PAGE * PAGE, PAGE, &pin) == FP_OK) fp_unpin(pin);
    wrong += fp_region_advise(region, 0, PAGE, 99) != FP_ERR_ADVICE;
    wrong += fp_region_pin(region, BYTES, PAGE, &pin) != FP_ERR_RANGE;
}

static int with(const char *swap, bool in_malloc) {
    fp_config config;
    fp_pager *pager;
    fp_region *region;
    fp_config_init(&config);
    config.budget_bytes = 8 << 20;
    config.swap = swap;
    if (fp_pager_new(&config, &pager) != FP_OK || fp_region_new(pager, BYTES, &region) != FP_OK) {
        fprintf(stderr, "%s\n", fp_last_error());
        return 1;
    }
    memory = fp_region_data(region);
    for (size_t i = 0; i < BYTES; i++) memory[i] = content(i / PAGE, i % PAGE);
    handled = over = 0;
    pthread_t threads[2];
    if (pthread_create(&threads[0], NULL, sender, NULL) || pthread_create(&threads[1], NULL, forker, region)) return 1;
    for (uint32_t x = 1; !over;) {
        x = x * 1103515245u + 12345u;
        if (in_malloc) {
            churn_malloc(x);
        } else {
            churn_farpage(x, region);
        }
    }
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    fp_region_free(region);
    fp_pager_free(pager);
    return wrong != 0;
}

int main(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    interrupted = pthread_self();
    return sigaction(SIGUSR1, &action, NULL) || with(NULL, true) || with(NULL, false) ||
           with("file:/var/tmp", true) || with("file:/var/tmp,encrypt", false) || with("zram,alg=zstd", true);
}

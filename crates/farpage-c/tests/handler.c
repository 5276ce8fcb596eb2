/* A signal handler that touches a region while the interrupted thread is inside malloc: nothing that the fault waits for
 * may wait for malloc. Fails by not ending. */
#define _POSIX_C_SOURCE 200809L
#include <farpage.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PAGE = 4096, BYTES = 32 << 20, SIGNALS = 1000, BLOCKS = 256 };

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

static int with(const char *swap) {
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
    pthread_t thread;
    if (pthread_create(&thread, NULL, sender, NULL)) return 1;
    static void *blocks[BLOCKS];
    for (uint32_t x = 1; !over;) {
        x = x * 1103515245u + 12345u;
        void **block = &blocks[(x >> 8) % BLOCKS];
        free(*block);
        *block = malloc(1500 + (x >> 16) % 60000);
    }
    pthread_join(thread, NULL);
    fp_region_free(region);
    fp_pager_free(pager);
    return wrong != 0;
}

int main(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    interrupted = pthread_self();
    return sigaction(SIGUSR1, &action, NULL) || with(NULL) || with("file:/var/tmp");
}

/* Uses a library with relocated tables while memory is short, until the tables are ordinary memory, and out.
 *
 * usage: relocated linked          threads read the tables meanwhile; then forks, a write, access rights
 *        relocated LIBRARY         loads and unloads it three times, while other memory comes and goes
 *        relocated sleep           as linked, then says "ready" and reads its standard input
 *
 * Linked with the library for the first and the last. Prints "right", or what is wrong. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 512, HEAP = 24 << 20 };

extern int *const *relocated_table(void) __attribute__((weak));
extern int *relocated_places(void) __attribute__((weak));

static int *const *table;
static int *places;
static atomic_int stop;
static unsigned char *heap, round_number;

static void need(int ok, const char *what) {
    if (!ok) printf("wrong: %s\n", what), exit(1);
}

static void check(const char *who) {
    for (int i = 0; i < PAGES * 512; i++) need(table[i] == &places[i / 512], who);
}

static void *reads(void *unused) {
    while (!stop) check("a reading thread");
    return unused;
}

/* Memory of its own comes and goes, where the library was, too. */
static void *maps(void *unused) {
    while (!stop) {
        size_t len = (64 + rand() % 512) * PAGE;
        unsigned char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        need(p != MAP_FAILED, "mmap");
        for (size_t at = 0; at < len; at += PAGE) p[at] = at / PAGE * 7;
        for (size_t at = 0; at < len; at += PAGE) need(p[at] == (unsigned char)(at / PAGE * 7), "other memory");
        munmap(p, len);
    }
    return unused;
}

/* Fills all of the heap, and checks what it had. */
static void press(void) {
    for (size_t at = 0; at < HEAP; at += PAGE) {
        need(heap[at] == round_number, "the heap");
        heap[at] = round_number + 1;
    }
    round_number++;
}

/* Of the mapping with the middle of the table: whether it is anonymous, its access rights, KiB that are resident. */
struct found { int mapped, anonymous, resident; char rights[5]; };

static struct found look(const void *table) {
    struct found found = {0};
    uintptr_t middle = (uintptr_t)table + PAGES / 2 * PAGE, start, end;
    char line[512], name[256];
    FILE *file = fopen("/proc/self/smaps", "r");
    for (int here = 0; fgets(line, sizeof line, file);) {
        char rights[5];
        int n = sscanf(line, "%lx-%lx %4s %*s %*s %*s %255s", &start, &end, rights, name);
        if (n >= 3) {
            here = start <= middle && middle < end;
            if (here) found.mapped = 1, found.anonymous = n == 3, strcpy(found.rights, rights);
        } else if (here) {
            sscanf(line, "Rss: %d kB", &found.resident);
        }
    }
    fclose(file);
    return found;
}

static void until_taken_over(void) {
    struct found found;
    do {
        press();
        found = look(table);
    } while (!found.anonymous);
    need(strcmp(found.rights, "r--p") == 0, "the access rights");
}

static void until_out(void) {
    do press();
    while (look(table).resident > PAGES * 4 / 2);
}

static int *volatile *writable(int prot) {
    need(mprotect((char *)(((uintptr_t)table + PAGE - 1) & -PAGE), (PAGES - 2) * PAGE, prot) == 0, "mprotect");
    return (int *volatile *)table;
}

static int status_of(void (*work)(void)) {
    int status;
    pid_t child = fork();
    need(child >= 0, "fork");
    if (child == 0) {
        work();
        check("a child");
        _exit(0);
    }
    need(waitpid(child, &status, 0) == child, "waitpid");
    return status;
}

static void write_one(void) {
    signal(SIGSEGV, SIG_DFL);
    ((int *volatile *)table)[5000] = NULL;
}

static void in_a_child(void) {
    check("a child at first");
    press();
}

static void linked(void) {
    pthread_t threads[2];
    table = relocated_table(), places = relocated_places();
    for (int i = 0; i < 2; i++) need(pthread_create(&threads[i], NULL, reads, NULL) == 0, "pthread_create");
    until_taken_over();
    stop = 1;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    until_out();
    need(status_of(in_a_child) == 0, "a child's status");
    check("after a fork");
    until_out();
    int status = status_of(write_one);
    need(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "a write");
    int *volatile *page = (int *volatile *)((uintptr_t)&table[100000] & -(uintptr_t)PAGE);
    need(mprotect((void *)page, PAGE, PROT_READ | PROT_WRITE) == 0, "access rights of a part");
    until_out();
    page[3] = page[3];
    need(mprotect((void *)page, PAGE, PROT_READ) == 0, "access rights of a part");
    writable(PROT_READ | PROT_WRITE)[100000] = &places[7];
    until_out();
    need(table[100000] == &places[7], "what was written");
    writable(PROT_READ | PROT_WRITE)[100000] = &places[100000 / 512];
    writable(PROT_READ);
    press();
    check("in the end");
}

static void loaded(const char *library) {
    pthread_t thread;
    need(pthread_create(&thread, NULL, maps, NULL) == 0, "pthread_create");
    for (int i = 0; i < 3; i++) {
        void *handle = dlopen(library, RTLD_NOW);
        need(handle != NULL, "dlopen");
        table = ((int *const *(*)(void))dlsym(handle, "relocated_table"))();
        places = ((int *(*)(void))dlsym(handle, "relocated_places"))();
        until_taken_over();
        until_out();
        check("a loaded library");
        if (i == 1) until_out();
        need(dlclose(handle) == 0, "dlclose");
        press();
        struct found found = look(table);
        need(!found.mapped || strcmp(found.rights, "r--p") != 0, "unloaded, and still there");
    }
    stop = 1;
    pthread_join(thread, NULL);
}

/* A debugger stops the engine, too, which could bring nothing in then. (What has no name is the engine's, or small.) */
static void bring_all_in(void) {
    unsigned long start, end;
    char line[512];
    free(heap);
    FILE *file = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "%lx-%lx", &start, &end) == 2 && strpbrk(line, "/["))
            madvise((void *)start, end - start, MADV_POPULATE_READ);
    fclose(file);
    check("before the debugger");
}

int main(int argc, char **argv) {
    (void)argc;
    heap = malloc(HEAP + PAGE);
    need(heap != NULL, "malloc");
    memset(heap, 0, HEAP);
    if (argv[1][0] == '/')
        loaded(argv[1]);
    else
        linked();
    if (strcmp(argv[1], "sleep") == 0) {
        bring_all_in();
        puts("ready");
        fflush(stdout);
        getchar();
        check("after the debugger");
    }
    puts("right");
    return 0;
}

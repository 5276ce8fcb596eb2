/* Fills memory and compares it, and ends in one of several ways. With 64 MiB, more than there is; the most that was
 * resident is looked at where a thread outlives the first one.
 *
 *     ends WAY MIB     "ok", unless something was wrong */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static size_t words;
static const char *way;

static void say(const char *text)
{
    if (write(1, text, strlen(text)) < 0)
        _exit(9);
}

static void work(void)
{
    uint64_t *word = mmap(0, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t bad = 0;
    for (size_t i = 0; i < words; i++)
        word[i] = i * 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i < words; i++)
        bad += word[i] != i * 0x9e3779b97f4a7c15u;
    say(bad ? "wrong\n" : "ok\n");
}

static void by_instruction(long number, long argument)
{
    long result = number;
    __asm__ volatile("syscall" : "+a"(result) : "D"(argument) : "rcx", "r11", "memory");
}

static void *outlives(void *none)
{
    (void)none;
    /* The first thread has ended by then. */
    char state[512] = "";
    while (!strstr(state, ") Z")) {
        FILE *stat = fopen("/proc/self/stat", "r");
        if (!stat || !fgets(state, sizeof state, stat))
            exit(8);
        fclose(stat);
    }
    work();
    FILE *status = fopen("/proc/thread-self/status", "r");
    long most = 0;
    for (char line[256]; fgets(line, sizeof line, status);)
        sscanf(line, "VmHWM: %ld", &most);
    if (getenv("MOST_KIB") && most > atol(getenv("MOST_KIB")))
        printf("%ld KiB\n", most);
    fclose(status);
    fflush(stdout);
    return 0;
}

/* No more than what a program like this one may need. */
static void allow_little(void)
{
#define ALLOW(call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(SYS_write), ALLOW(SYS_exit), ALLOW(SYS_exit_group),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof steps / sizeof *steps, steps};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        _exit(7);
    say("allowed\n");
}

int main(int argc, char **argv)
{
    pthread_t thread;
    if (argc < 3)
        return 2;
    way = argv[1];
    words = (size_t)atoi(argv[2]) << 17;
#define IS(name) !strcmp(way, name)
    if (IS("leaves") || IS("leaves by exit")) {
        if (pthread_create(&thread, 0, outlives, 0))
            return 6;
        if (IS("leaves"))
            pthread_exit(0);
        syscall(SYS_exit, 3);
    }
    work();
    if (IS("rests, exit"))
        sleep(4);
    if (IS("exit") || IS("rests, exit"))
        syscall(SYS_exit, 3);
    if (IS("exit by instruction"))
        by_instruction(SYS_exit, 3);
    if (IS("strict")) {
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
        by_instruction(SYS_exit, 3);
    }
    if (IS("allows little") || IS("allows little, returns"))
        allow_little();
    if (IS("allows little"))
        _exit(4);
    return 5;
}

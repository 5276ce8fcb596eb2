// Gives privileges up, or changes them, in ways that programs do, one after the other, once its memory is managed.
// After each it says so and waits for a line: meanwhile somebody compares its threads. Its memory has to be right
// afterwards, and in a child, which waits, too. With "early" in front it fills its memory only then, and waits once
// more; "in a handler" waits once more as well.
//
//   privileges DIRECTORY [early] HOW...     (as root)
#define _GNU_SOURCE
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NOBODY = 65534, WORDS = (40 << 20) / 8 };

static size_t *words;

static void fill(void) {
    words = malloc(WORDS * sizeof *words);
    for (size_t i = 0; i < WORDS; i++) words[i] = i * 0x9e3779b97f4a7c15u;
}

static int is_wrong(void) {
    for (size_t i = 0; i < WORDS; i++)
        if (words[i] != i * 0x9e3779b97f4a7c15u) return 1;
    return 0;
}

static void wait_for_line(const char *what) {
    char byte;
    printf("%s %d\n", what, getpid());
    fflush(stdout);
    if (read(0, &byte, 1) != 1) _exit(3);
}

// A system call that no function of a library makes.
static long instruction(long number, long a, long b, long c) {
    __asm__ volatile("syscall" : "+a"(number) : "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return number;
}

static int keep_capabilities(unsigned low, int ambient, int by_call) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2] = {{low, low, ambient ? low : 0}, {0, 0, 0}};
    extern int capset(struct __user_cap_header_struct *, const struct __user_cap_data_struct *);
    return by_call ? syscall(SYS_capset, &header, data) : capset(&header, data);
}

static int filter(int refuses, int way) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, refuses ? SYS_ioctl : 0xffff, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, refuses ? SYS_openat : 0xffff, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof steps / sizeof *steps, steps};
    if (way == 0) return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, way == 1 ? 0 : SECCOMP_FILTER_FLAG_TSYNC, &program);
}

static int setuid_all(void) { return setgroups(0, NULL) || setgid(NOBODY) || setuid(NOBODY); }

static void *setuid_thread(void *unused) {
    (void)unused;
    return (void *)(long)setuid_all();
}

static void *sleeping_thread(void *unused) {
    (void)unused;
    for (;;) pause();
    return NULL;
}

// A fork waits for a thread of which the engine's have to follow the change.
static void handler(void) {
    static int done;
    pthread_t changes;
    void *failed;
    if (done++) return;
    if (pthread_create(&changes, NULL, setuid_thread, NULL) || pthread_join(changes, &failed) || failed) _exit(3);
    wait_for_line("changed");
}

static int fork_with_handler(void) {
    int status = -1;
    if (pthread_atfork(handler, NULL, NULL)) return 1;
    pid_t child = fork();
    if (child == 0) _exit(is_wrong());
    return child < 0 || waitpid(child, &status, 0) != child || status;
}

static int before = -1;

static int change(const char *how, const char *directory) {
#define IS(name) (!strcmp(how, name))
    const gid_t groups[] = {1, 2, 3, 1000};
    const unsigned some = 1u << CAP_NET_BIND_SERVICE | 1u << CAP_SETUID | 1u << CAP_SETGID;
    if (IS("setuid")) return setuid_all();
    if (IS("setresuid")) return setgroups(4, groups) || setresgid(1, 2, 3) || setresuid(NOBODY, NOBODY, 1000);
    if (IS("setreuid")) return setregid(NOBODY, 1) || setreuid(NOBODY, 1000);
    if (IS("seteuid")) return setegid(NOBODY) || seteuid(NOBODY);
    if (IS("back")) return seteuid(0) || setegid(0);
    if (IS("initgroups")) return initgroups("nobody", 1234);
    if (IS("call"))
        return syscall(SYS_setgroups, 0, NULL) || syscall(SYS_setresgid, 1, 1, 1) || syscall(SYS_setresuid, 1, 1, 1);
    if (IS("instruction")) {
        if (instruction(SYS_setgroups, 0, 0, 0) || instruction(SYS_setresuid, 1, 1, 1)) return 1;
        return prctl(PR_SET_DUMPABLE, 1);
    }
    if (IS("thread")) {
        pthread_t changes, sleeps;
        void *failed;
        if (pthread_create(&sleeps, NULL, sleeping_thread, NULL)) return 1;
        return pthread_create(&changes, NULL, setuid_thread, NULL) || pthread_join(changes, &failed) || failed != NULL;
    }
    if (IS("in a handler")) return fork_with_handler();
    if (IS("capset")) return keep_capabilities(some, 0, 0);
    if (IS("capset call")) return keep_capabilities(some, 0, 1);
    if (IS("keepcaps")) return prctl(PR_SET_KEEPCAPS, 1) || setresuid(1, 1, 1) || keep_capabilities(some, 0, 0);
    if (IS("ambient"))
        return keep_capabilities(some, 1, 0) || prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_NET_BIND_SERVICE, 0, 0);
    if (IS("bounding")) return prctl(PR_CAPBSET_DROP, CAP_NET_RAW) || syscall(SYS_prctl, PR_CAPBSET_DROP, CAP_SYS_BOOT);
    if (IS("securebits")) return prctl(PR_SET_SECUREBITS, SECBIT_NOROOT | SECBIT_NOROOT_LOCKED);
    if (IS("no new privileges")) return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (IS("filter")) return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || filter(0, 0);
    if (IS("filter call")) return filter(0, 1);
    if (IS("filter of nobody")) return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || setuid_all() || filter(0, 1);
    if (IS("filter for all")) return filter(0, 2);
    if (IS("killing filter")) return filter(1, 0);
    if (IS("killing filter for all")) return filter(1, 2);
    if (IS("another thread")) { // whose stack alone is no reason for an engine
        pthread_t sleeps;
        pthread_attr_t attributes;
        if (pthread_attr_init(&attributes) || pthread_attr_setstacksize(&attributes, 64 << 10)) return 1;
        return pthread_create(&sleeps, &attributes, sleeping_thread, NULL);
    }
    if (IS("chroot")) return chroot(directory) || chdir("/");
    if (IS("chroot call")) return syscall(SYS_chroot, directory) || chdir("/");
    if (IS("chroot and setuid")) return chroot(directory) || chdir("/") || setuid_all();
    if (IS("unshare"))
        return unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWCGROUP) || chroot(directory);
    if (IS("unshare net")) {
        before = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
        return before < 0 || unshare(CLONE_NEWNET);
    }
    if (IS("setns")) return setns(before, CLONE_NEWNET);
    return 1;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    int children = 1, early = !strcmp(argv[2], "early");
    if (!early) fill();
    for (int i = 2 + early; i < argc; i++) {
        if (change(argv[i], argv[1])) return perror(argv[i]), 2;
        wait_for_line("changed");
        // The filter would be its engine's, too.
        if (strstr(argv[i], "killing filter")) children = 0;
    }
    if (early) {
        fill();
        wait_for_line("changed");
    }
    if (is_wrong()) return 1;
    if (children) {
        int dumpable = prctl(PR_GET_DUMPABLE);
        pid_t child = fork();
        if (child == 0) {
            if (is_wrong() || prctl(PR_GET_DUMPABLE) != dumpable) _exit(1);
            wait_for_line("child");
            _exit(0);
        }
        int status = -1;
        if (child < 0 || waitpid(child, &status, 0) != child || status) return printf("child %x\n", status), 1;
        if (is_wrong()) return 1;
    }
    printf("dumpable %d\n", prctl(PR_GET_DUMPABLE));
    return 0;
}

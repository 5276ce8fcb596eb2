/* Programs in which a late start is easily wrong.
 *   filtered: a worker with a seccomp filter of its own, under which an engine would end the process, waits in a call
 *             in which others may be borrowed; the main thread waits, too
 *   address:  built at a fixed address (-no-pie), with the addresses of functions that the library stands in front of
 * Says "ready", waits for a line, checks, and prints "right". */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void *worker(void *unused) {
  (void)unused;
  struct sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
      /* The kernel goes on by itself with a call that something has interrupted. */
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_restart_syscall, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clock_nanosleep, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  struct sock_fprog program = {.len = sizeof steps / sizeof *steps, .filter = steps};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) _exit(3);
  for (;;) {
    struct timespec second = {.tv_sec = 1};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &second, NULL);
  }
  return NULL;
}

/* Whether a thread of this process has a filter: the worker can say nothing any more when it has. */
static int filtered(void) {
  FILE *found = popen("grep -l '^Seccomp:.2' /proc/$PPID/task/*/status", "r");
  int first = found ? getc(found) : EOF;
  if (found) pclose(found);
  return first != EOF;
}

__attribute__((noinline)) static void use(void *function) { __asm__ volatile("" ::"r"(function)); }

int main(int argc, char **argv) {
  char line[16];
  if (argc > 1 && !strcmp(argv[1], "filtered")) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, worker, NULL)) return 1;
    while (!filtered()) usleep(1000);
  } else {
    use(fork), use(malloc), use(mmap), use(execve), use(close);
  }
  puts("ready");
  fflush(stdout);
  if (!fgets(line, sizeof line, stdin)) return 1;
  unsigned char *p = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memset(p, 7, 1 << 20);
  pid_t pid = fork();
  if (pid == 0) _exit(p[4096] == 7 ? 0 : 1);
  int status = -1;
  waitpid(pid, &status, 0);
  void *more = malloc(1 << 20);
  puts(status == 0 && more ? "right" : "wrong");
  return 0;
}

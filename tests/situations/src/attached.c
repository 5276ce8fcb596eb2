/* Threads that allocate, check and free while somebody attaches; the first one computes, and forks if it is told to.
 * attached THREADS [fork]: until a line comes in on standard input, or it ends. Prints how many checks were wrong. */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCKS = 4000, LARGEST = 12000 };

static volatile int ends;
static long bad;

static unsigned char content(int block, size_t bytes, size_t at) { return (unsigned char)(block + bytes + at); }

static void check(int block, const unsigned char *p, size_t bytes, size_t step) {
  for (size_t i = 0; i < bytes; i += step)
    if (p[i] != content(block, bytes, i)) __atomic_add_fetch(&bad, 1, __ATOMIC_RELAXED);
}

static void *work(void *number) {
  unsigned state = (unsigned)(uintptr_t)number * 7919 + 1;
  unsigned char **blocks = calloc(BLOCKS, sizeof *blocks);
  size_t *bytes = calloc(BLOCKS, sizeof *bytes);
  if (!blocks || !bytes) abort();
  while (!ends) {
    int i = rand_r(&state) % BLOCKS;
    if (blocks[i]) {
      check(i, blocks[i], bytes[i], 97);
      free(blocks[i]);
      blocks[i] = NULL;
      continue;
    }
    bytes[i] = 16 + (size_t)rand_r(&state) % LARGEST;
    blocks[i] = malloc(bytes[i]);
    if (!blocks[i]) abort();
    for (size_t k = 0; k < bytes[i]; k++) blocks[i][k] = content(i, bytes[i], k);
  }
  for (int i = 0; i < BLOCKS; i++)
    if (blocks[i]) check(i, blocks[i], bytes[i], 1);
  return NULL;
}

static void child(void) {
  enum { MUCH = 1 << 20 };
  unsigned char *p = malloc(MUCH);
  if (!p) _exit(2);
  memset(p, 7, MUCH);
  for (int i = 0; i < MUCH; i++)
    if (p[i] != 7) _exit(1);
  _exit(0);
}

int main(int argc, char **argv) {
  int threads = argc > 1 ? atoi(argv[1]) : 4, forks = argc > 2;
  pthread_t ids[64];
  if (threads > 64) return 2;
  for (long i = 0; i < threads; i++) pthread_create(&ids[i], NULL, work, (void *)i);
  puts("ready");
  fflush(stdout);
  struct pollfd input = {.fd = 0, .events = POLLIN};
  volatile unsigned long sum = 0;
  while (poll(&input, 1, 0) == 0) {
    for (unsigned long i = 0; i < 1000000; i++) sum += i * sum + 1;
    if (!forks) continue;
    pid_t pid = fork();
    if (pid == 0) child();
    int status = -1;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status) {
      fprintf(stderr, "child: status %x\n", (unsigned)status);
      __atomic_add_fetch(&bad, 1, __ATOMIC_RELAXED);
    }
  }
  ends = 1;
  for (int i = 0; i < threads; i++) pthread_join(ids[i], NULL);
  printf("%ld bad\n", bad);
  return bad != 0;
}

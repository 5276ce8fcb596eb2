/* Robust mutexes in memory that is swapped out while they are held: the next one to lock learns that the owner has
 * died.
 *
 * Usage: robust MIB threads|killed [USER]
 * threads: the owner is a thread that ends; meanwhile others take and give back robust mutexes of their own
 * killed: the owner is a child that is killed; what is looked at then is a shared mutex that it took before private
 * ones
 * USER: a number; the program becomes that user first, so it cannot be dumped, and its files in /proc are root's */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { N = 8, PAGE = 4096, BUSY = 2 };

static char *memory;
static size_t len;
static pthread_mutex_t *held[N], *shared;
static volatile int locked, over;

static pthread_mutex_t *make(void *at, int is_shared)
{
	pthread_mutexattr_t attr;
	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	if (is_shared)
		pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	if (pthread_mutex_init(at, &attr))
		abort();
	return at;
}

static void *own(void *until)
{
	for (int i = 0; i < N; i++)
		pthread_mutex_lock(held[i]);
	locked = 1;
	while (!over)
		usleep(1000);
	return until;
}

static void *take_and_give_back(void *mine)
{
	char *at = mine;
	pthread_mutex_t *some[4];
	for (int i = 0; i < 4; i++)
		some[i] = make(at + (size_t)i * 64 * PAGE + 64, 0);
	while (!over) {
		for (int i = 0; i < 4; i++)
			pthread_mutex_lock(some[i]);
		for (int i = 0; i < 4; i++)
			pthread_mutex_unlock(some[i]);
	}
	return NULL;
}

/* Every page is used but those of the mutexes. */
static void use_memory(void)
{
	for (int round = 0; round < 3; round++)
		for (size_t i = 0; i < len; i += PAGE)
			if (i % (len / N) > PAGE)
				memset(memory + i, round + (int)(i / PAGE), PAGE);
}

static int died(const char *what, int number, pthread_mutex_t *mutex)
{
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 20;
	int error = pthread_mutex_timedlock(mutex, &until);
	if (error == EOWNERDEAD)
		return 1;
	printf("%s %d: %s\n", what, number, error ? strerror(error) : "locked");
	return 0;
}

int main(int argc, char **argv)
{
	if (argc != 3 && argc != 4)
		return fprintf(stderr, "usage: robust MIB threads|killed [USER]\n"), 2;
	if (argc == 4 && (setgid((gid_t)atoi(argv[3])) || setuid((uid_t)atoi(argv[3]))))
		return perror("setuid"), 2;
	len = (size_t)atoi(argv[1]) << 20;
	memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	make(shared, 1);
	/* Every second one lies over the end of its page. */
	for (int i = 0; i < N; i++)
		held[i] = make(memory + len / N * i + (i % 2 ? PAGE - 24 : 256), 0);
	int told = 0, wanted = N;
	if (!strcmp(argv[2], "killed")) {
		int ready[2];
		if (pipe(ready))
			return 2;
		pid_t child = fork();
		if (!child) {
			pthread_mutex_lock(shared);
			for (int i = 0; i < N; i++)
				pthread_mutex_lock(held[i]);
			use_memory();
			if (write(ready[1], "", 1) != 1)
				_exit(2);
			for (;;)
				pause();
		}
		char byte;
		if (read(ready[0], &byte, 1) != 1)
			return 2;
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
		told = died("shared", 0, shared);
		wanted = 1;
	} else {
		pthread_t owner, busy[BUSY];
		char *theirs = mmap(NULL, BUSY << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		for (int i = 0; i < BUSY; i++)
			pthread_create(&busy[i], NULL, take_and_give_back, theirs + (i << 20));
		pthread_create(&owner, NULL, own, NULL);
		while (!locked)
			usleep(1000);
		use_memory();
		over = 1;
		pthread_join(owner, NULL);
		for (int i = 0; i < BUSY; i++)
			pthread_join(busy[i], NULL);
		for (int i = 0; i < N; i++)
			told += died("mutex", i, held[i]);
	}
	printf("told of %d of %d\n", told, wanted);
	return told != wanted;
}

/* Operations that make processes: each child checks what it inherited, and goes on with it. */
#define _GNU_SOURCE
#include "stress.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void ended(const struct child *c, int status)
{
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return;
	if (WIFSIGNALED(status))
		fail("%s %d was killed by signal %d (%s)", c->what, (int)c->pid, WTERMSIG(status),
		     strsignal(WTERMSIG(status)));
	fail("%s %d exited with status %d", c->what, (int)c->pid, WEXITSTATUS(status));
}

/* Collects children that have ended; with `wait_all` waits for all. */
void reap(struct worker *w, bool wait_all)
{
	for (int i = 0; i < MAX_CHILDREN; i++) {
		struct child *c = &w->children[i];
		if (!c->what)
			continue;
		if (c->pid) {
			int status, flags = wait_all ? 0 : WNOHANG;
			pid_t p;
			do
				p = waitpid(c->pid, &status, flags);
			while (p < 0 && errno == EINTR);
			if (p == 0)
				continue;
			need(p == c->pid, "waitpid");
			ended(c, status);
		} else {
			char word = 0;
			ssize_t n;
			if (wait_all)
				fcntl(c->fd, F_SETFL, 0);
			do
				n = read(c->fd, &word, 1);
			while (n < 0 && errno == EINTR);
			if (n < 0 && errno == EAGAIN)
				continue;
			if (n != 1 || word != 'k')
				fail("an orphan ended without saying that its memory was right");
			close(c->fd);
		}
		c->what = NULL;
	}
}

static struct child *free_child(struct worker *w)
{
	reap(w, false);
	for (int i = 0; i < MAX_CHILDREN; i++)
		if (!w->children[i].what)
			return &w->children[i];
	return NULL;
}

static pid_t start(struct worker *w)
{
	pid_t p = fork();

	need(p >= 0, "fork");
	w->forks++;
	if (p)
		return p;
	self = w;
	w->depth++;
	w->rng ^= 0x5851f42d4c957f2du * w->depth;
	for (int i = 0; i < MAX_CHILDREN; i++) {
		if (w->children[i].what && w->children[i].fd > 0)
			close(w->children[i].fd);
		w->children[i].what = NULL;
	}
	/* Locks are not inherited. */
	w->locked = NULL;
	return 0;
}

static void doze(struct worker *w, size_t most_us)
{
	struct timespec t = { 0, 1000 * (long)(1 + below(w, most_us)) };

	nanosleep(&t, NULL);
}

static void some_ops(struct worker *w, size_t n)
{
	while (n--)
		random_op(w);
}

static void wait_for(pid_t pid, const char *what)
{
	struct child c = { .pid = pid, .fd = -1, .what = what };
	int status;

	while (waitpid(pid, &status, 0) < 0)
		need(errno == EINTR, "waitpid");
	ended(&c, status);
}

static void true_program(void)
{
	execl("/bin/true", "true", (char *)NULL);
	fail("/bin/true: %s", strerror(errno));
}

/* What a child does with the memory it inherited. */
static void live(struct worker *w)
{
	bool grandchild = w->depth < 2 && one_in(w, 3);

	if (one_in(w, 4))
		some_ops(w, 5);
	check_all(w);
	some_ops(w, below(w, 20));
	if (grandchild) {
		pid_t p = start(w);
		if (p == 0) {
			check_all(w);
			some_ops(w, below(w, 10));
			_exit(0);
		}
		some_ops(w, below(w, 10));
		if (one_in(w, 2))
			wait_for(p, "a grandchild");
		else
			reap(w, false);
	}
	if (one_in(w, 2))
		check_all(w);
	reap(w, true);
}

/* A child that checks, changes and ends, while its parent goes on. */
static void op_fork(struct worker *w)
{
	struct child *c = free_child(w);

	if (!c)
		return;
	pid_t p = start(w);
	if (p == 0) {
		live(w);
		_exit(0);
	}
	*c = (struct child){ .pid = p, .fd = -1, .what = "a child" };
	if (one_in(w, 4))
		reap(w, true);
}

/* A child that lives long: it comes back to its memory again and again. */
static void op_long(struct worker *w)
{
	struct child *c = free_child(w);

	if (!c)
		return;
	pid_t p = start(w);
	if (p == 0) {
		for (int i = 0; i < 10; i++) {
			doze(w, 30000);
			some_ops(w, 3);
		}
		check_all(w);
		reap(w, true);
		_exit(0);
	}
	*c = (struct child){ .pid = p, .fd = -1, .what = "a long-lived child" };
}

/* A daemon: the process between ends at once, the orphan looks at its memory when its parent is gone. */
static void op_orphan(struct worker *w)
{
	struct child *c = free_child(w);
	int fd[2];

	if (!c)
		return;
	need(pipe2(fd, O_CLOEXEC) == 0, "pipe2");
	pid_t p = start(w);
	if (p == 0) {
		pid_t parent = getpid();
		if (start(w) != 0)
			_exit(0);
		close(fd[0]);
		while (getppid() == parent)
			doze(w, 1000);
		live(w);
		if (write(fd[1], "k", 1) != 1)
			_exit(1);
		_exit(0);
	}
	close(fd[1]);
	/* Some of the time the parent goes on at once, and the process between waits to be collected. */
	if (one_in(w, 2))
		some_ops(w, 3);
	wait_for(p, "a process that only forks");
	fcntl(fd[0], F_SETFL, O_NONBLOCK);
	*c = (struct child){ .pid = 0, .fd = fd[0], .what = "an orphan" };
}

/* A child that is killed in the middle of its work. */
static void op_kill(struct worker *w)
{
	pid_t p = start(w);
	int status;

	if (p == 0) {
		some_ops(w, 100);
		for (;;)
			check_all(w);
	}
	doze(w, 5000);
	kill(p, SIGKILL);
	while (waitpid(p, &status, 0) < 0)
		need(errno == EINTR, "waitpid");
	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
		fail("a child that was to be killed ended with status %x", status);
}

/* Other programs, started in each of the usual ways. */
static void op_exec(struct worker *w)
{
	static char *const argv[] = { "true", NULL };
	extern char **environ;
	pid_t p;

	if (one_in(w, 2)) {
		int e = posix_spawn(&p, "/bin/true", NULL, NULL, argv, environ);
		if (e)
			fail("posix_spawn: %s", strerror(e));
		w->forks++;
	} else {
		p = start(w);
		if (p == 0) {
			if (one_in(w, 2))
				some_ops(w, 5);
			true_program();
		}
	}
	some_ops(w, below(w, 3));
	wait_for(p, "/bin/true");
}

const struct op fork_ops[] = {
	{ "fork", 3, op_fork, "a child that checks and changes what it inherited" },
	{ "long", 2, op_long, "a child that lives long" },
	{ "orphan", 2, op_orphan, "a child whose parent ends first" },
	{ "kill", 1, op_kill, "a child that is killed at work" },
	{ "exec", 2, op_exec, "fork and exec, posix_spawn" },
	{ 0 },
};

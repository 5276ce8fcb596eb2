/* What only a process with one thread may do: says how many threads it has, here and in a child, and whether it may. */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int threads(void)
{
	struct stat s;
	if (stat("/proc/self/task", &s))
		err(2, "/proc/self/task");
	return s.st_nlink - 2;
}

static const char *outcome(int result)
{
	return result ? strerror(errno) : "allowed";
}

/* Runs f in a child. */
static void in_child(void (*f)(int), int arg)
{
	int status;
	fflush(stdout);
	pid_t pid = fork();
	if (pid < 0)
		err(2, "fork");
	if (pid == 0) {
		f(arg);
		fflush(stdout);
		_exit(0);
	}
	if (waitpid(pid, &status, 0) != pid || status)
		errx(2, "the child ended with %x", status);
}

static void leave(int unused)
{
	(void)unused;
	printf("child: threads %d, unshare(CLONE_NEWUSER) %s\n", threads(), outcome(unshare(CLONE_NEWUSER)));
}

static void join(int ns)
{
	printf("child: setns %s\n", outcome(setns(ns, CLONE_NEWUSER)));
}

int main(void)
{
	int told[2], done[2];
	char name[64], c;
	/* Whether the kernel knows filters, as sandboxes ask. */
	int mode = prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL);
	printf("filter %s\n", outcome(mode));
	long all = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, NULL);
	printf("filter for all %s\n", outcome(all));
	printf("threads %d\n", threads());
	in_child(leave, 0);
	if (pipe(told) || pipe(done))
		err(2, "pipe");
	fflush(stdout);
	pid_t other = fork();
	if (other == 0) {
		c = unshare(CLONE_NEWUSER) ? 'n' : 'y';
		write(told[1], &c, 1);
		close(done[1]);
		read(done[0], &c, 1);
		_exit(0);
	}
	if (read(told[0], &c, 1) != 1 || c != 'y')
		errx(2, "no other namespace");
	snprintf(name, sizeof name, "/proc/%d/ns/user", other);
	int ns = open(name, O_RDONLY);
	if (ns < 0)
		err(2, "%s", name);
	in_child(join, ns);
	close(done[1]);
	close(done[0]);
	waitpid(other, NULL, 0);
	printf("unshare(CLONE_NEWUSER) %s\n", outcome(unshare(CLONE_NEWUSER)));
	return 0;
}

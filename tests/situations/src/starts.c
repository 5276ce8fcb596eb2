/*
 * starts WAY PROGRAM: starts PROGRAM, with the arguments 1 to 7 and then three blanks, by one of libc's functions, and
 * ends as PROGRAM does. Those that search get its name only and find it by PATH. "more" in front of a way: with 500
 * more variables; "clean": with none but PATH.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static const char *way, *path, *name;

static int is(const char *other) { return strcmp(way, other) == 0; }

static void start(char **argv)
{
	int fd = open(path, O_RDONLY);

	if (is("execl")) execl(path, name, "1", "2", "3", "4", "5", "6", "7", " ", " ", " ", (char *)0);
	if (is("execlp")) execlp(name, name, "1", "2", "3", "4", "5", "6", "7", " ", " ", " ", (char *)0);
	if (is("execle")) execle(path, name, "1", "2", "3", "4", "5", "6", "7", " ", " ", " ", (char *)0, environ);
	if (is("execv")) execv(path, argv);
	if (is("execvp")) execvp(name, argv);
	if (is("execvpe")) execvpe(name, argv, environ);
	if (is("execve")) execve(path, argv, environ);
	if (is("fexecve")) fexecve(fd, argv, environ);
	if (is("execveat")) execveat(fd, "", argv, environ, AT_EMPTY_PATH);
	if (is("syscall")) syscall(SYS_execve, path, argv, environ);
	if (is("instruction")) {
		long result = SYS_execve;

		asm volatile("syscall" : "+a"(result) : "D"(path), "S"(argv), "d"(environ) : "rcx", "r11", "memory");
	}
}

int main(int argc, char **argv)
{
	char *arguments[] = { 0, "1", "2", "3", "4", "5", "6", "7", " ", " ", " ", 0 }, variable[16];
	int status;
	pid_t pid;

	if (argc != 3) return 100;
	way = argv[1];
	path = argv[2];
	arguments[0] = strrchr(path, '/') + 1;
	name = arguments[0];
	if (strncmp(way, "clean ", 6) == 0) {
		const char *where = getenv("PATH");

		way += 6;
		clearenv();
		setenv("PATH", where, 1);
	}
	if (strncmp(way, "more ", 5) == 0) {
		way += 5;
		for (int i = 0; i < 500; i++) {
			snprintf(variable, sizeof variable, "MORE_%d", i);
			setenv(variable, "yes", 1);
		}
	}
	if (is("posix_spawn")) {
		if ((errno = posix_spawn(&pid, path, 0, 0, arguments, environ))) return 101;
	} else if (is("posix_spawnp")) {
		if ((errno = posix_spawnp(&pid, name, 0, 0, arguments, environ))) return 101;
	} else if (is("system")) {
		status = system(path);
		return WIFEXITED(status) ? WEXITSTATUS(status) : 102;
	} else if (is("popen")) {
		FILE *file = popen(path, "r");
		int c;

		if (!file) return 106;
		while ((c = getc(file)) != EOF) putchar(c);
		status = pclose(file);
		return WIFEXITED(status) ? WEXITSTATUS(status) : 102;
	} else {
		/* Whatever a function does to the stack or the memory, the parent would notice. */
		if ((pid = vfork()) == 0) {
			start(arguments);
			_exit(103);
		}
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid) return 104;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 105;
}

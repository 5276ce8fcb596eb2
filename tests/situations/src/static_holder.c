/* static_holder MIB: fills memory, says "ready", and stays until its input ends. Linked statically, so that nothing can
 * be attached to it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	size_t bytes = (size_t)atoi(argv[argc - 1]) << 20;
	char *memory = malloc(bytes);

	if (!memory)
		return 1;
	memset(memory, 1, bytes);
	puts("ready");
	fflush(stdout);
	while (getchar() != EOF)
		;
	return memory[bytes / 2] == 1 ? 0 : 1;
}

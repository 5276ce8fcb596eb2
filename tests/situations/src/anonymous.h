/* What a process has of anonymous memory, KiB; what several have counts in parts. */
#include <stdio.h>

static long anonymous(int pid)
{
	char name[64], line[256];
	long kib = 0, is;
	snprintf(name, sizeof name, "/proc/%d/smaps_rollup", pid);
	FILE *file = fopen(name, "r");
	while (file && fgets(line, sizeof line, file))
		if (sscanf(line, "Pss_Anon: %ld", &is) == 1)
			kib = is;
	if (file)
		fclose(file);
	return kib;
}

/* loop MIB PASSES: reads each 64th word of an array in order, again and again, and checks it. It does not compress. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

static uint64_t mix(uint64_t x) {
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

int main(int argc, char **argv) {
	if (argc < 3)
		return 2;
	size_t words = (size_t)atoi(argv[1]) << 17;
	uint64_t *at = mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		return 2;
	for (size_t i = 0; i < words; i++)
		at[i] = mix(i);
	for (int pass = atoi(argv[2]); pass > 0; pass--)
		for (size_t i = 0; i < words; i += 64)
			if (at[i] != mix(i)) {
				printf("word %zu is wrong\n", i);
				return 1;
			}
	puts("ok");
	return 0;
}

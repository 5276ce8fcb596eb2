// Fills memory with words that do not compress, reads and writes all of it once more. fill_twice MB
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t word(size_t i)
{
    return i * 0x9e3779b97f4a7c15 ^ i >> 7;
}

int main(int argc, char **argv)
{
    size_t n = argc > 1 ? strtoul(argv[1], NULL, 0) << 17 : 0, wrong = 0;
    uint64_t *data = aligned_alloc(4096, n * 8);
    for (size_t i = 0; i < n; i++)
        data[i] = word(i);
    for (size_t i = 0; i < n; i++) {
        wrong += data[i] != word(i);
        data[i] = word(i);
    }
    printf("%zu words are wrong\n", wrong);
    return wrong != 0;
}

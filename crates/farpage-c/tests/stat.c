/* farpage stat on a program that uses the C library. Run by c.rs, which says in FARPAGE where the command is. */
#define _GNU_SOURCE
#include <farpage.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(x)                                                                         \
    do {                                                                                 \
        if (!(x)) {                                                                      \
            fprintf(stderr, "line %d: %s; last error: %s\n", __LINE__, #x, fp_last_error()); \
            exit(1);                                                                     \
        }                                                                                \
    } while (0)

#define MIB ((size_t)1 << 20)

int main(void)
{
    fp_config config;
    fp_pager *pager;
    fp_region *region;
    CHECK(fp_config_init(&config) == FP_OK);
    config.budget_bytes = 8 * MIB;
    CHECK(fp_pager_new(&config, &pager) == FP_OK);
    CHECK(fp_region_new(pager, 24 * MIB, &region) == FP_OK);
    uint64_t *words = fp_region_data(region), sum = 0;
    for (size_t i = 0; i < 3 * MIB; i++)
        words[i] = (i * 0x9e3779b97f4a7c15) >> 40;
    for (size_t i = 0; i < 3 * MIB; i++)
        sum += words[i];
    fp_stats stats;
    CHECK(sum && fp_pager_stats(pager, &stats, sizeof stats) == FP_OK);
    CHECK(stats.swap_ra_hit > 0 && stats.swap_ra_hit <= stats.swap_ra);

    char command[4096], answer[1 << 16], majflt[64];
    snprintf(command, sizeof command, "'%s' stat %d --json", getenv("FARPAGE"), (int)getpid());
    FILE *pipe = popen(command, "r");
    CHECK(pipe);
    answer[fread(answer, 1, sizeof answer - 1, pipe)] = 0;
    CHECK(pclose(pipe) == 0);
    snprintf(majflt, sizeof majflt, "\"pgmajfault\": %llu,", (unsigned long long)stats.pgmajfault);
    char *pagers = strstr(answer, "\"pagers\": [");
    CHECK(pagers && strstr(pagers, "\"pager\": 1,") && strstr(pagers, "\"budget_bytes\": 8388608,"));
    CHECK(strstr(pagers, majflt));
    fp_region_free(region);
    fp_pager_free(pager);
    return 0;
}

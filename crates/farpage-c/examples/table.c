/* A table of 64 MiB in 16 MiB of RAM: filled, updated in random order, summed up, and written to a file.
 *
 *     cc table.c $(pkg-config --cflags --libs farpage) -o table
 *     cc table.c $(pkg-config --static --cflags --libs farpage | sed s/-lfarpage/-l:libfarpage.a/) -o table
 */
#include <farpage.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define ROWS ((uint64_t)8 << 20)

static void check(const char *what, fp_status status)
{
    if (status != FP_OK) {
        fprintf(stderr, "table: %s: %s (%s)\n", what, fp_strerror(status), fp_last_error());
        exit(1);
    }
}

int main(void)
{
    fp_config config;
    check("config", fp_config_init(&config));
    config.budget_bytes = 16 << 20;
    fp_pager *pager;
    check("pager", fp_pager_new(&config, &pager));
    fp_region *region;
    check("region", fp_region_new(pager, ROWS * sizeof(uint64_t), &region));

    /* From here on it is memory. */
    uint64_t *table = fp_region_data(region);
    for (uint64_t i = 0; i < ROWS; i++)
        table[i] = i;
    check("advice", fp_region_advise(region, 0, fp_region_size(region), FP_RANDOM));
    uint64_t random = 1;
    for (int i = 0; i < 20000; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        table[random >> 41] += 1;
    }
    check("advice", fp_region_advise(region, 0, fp_region_size(region), FP_SEQUENTIAL));
    uint64_t sum = 0;
    for (uint64_t i = 0; i < ROWS; i++)
        sum += table[i];

    /* A system call needs its memory present: it is pinned for the time. */
    fp_pin *pin;
    check("pin", fp_region_pin(region, 0, 1 << 20, &pin));
    FILE *file = tmpfile();
    if (!file || write(fileno(file), table, 1 << 20) != 1 << 20) {
        perror("table: write");
        return 1;
    }
    fclose(file);
    fp_unpin(pin);

    fp_stats stats;
    check("stats", fp_pager_stats(pager, &stats, sizeof stats));
    fprintf(stderr, "table: %" PRIu64 " pages out, %" PRIu64 " in, %" PRIu64 " faults\n", stats.pswpout, stats.pswpin,
            stats.pgfault);
    printf("%" PRIu64 "\n", sum);
    fp_region_free(region);
    fp_pager_free(pager);
    return sum == ROWS * (ROWS - 1) / 2 + 20000 && stats.pswpout > 0 ? 0 : 1;
}

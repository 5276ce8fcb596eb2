/* A library with 2 MiB of relocated tables: the loader writes them, and makes them read-only then. A page of each
 * number of `places`, so that no page has the content of another. */
int places[512];

#define PAGE(n) [(n) * 512 ... (n) * 512 + 511] = &places[n]
#define PAGES4(n) PAGE(n), PAGE(n + 1), PAGE(n + 2), PAGE(n + 3)
#define PAGES16(n) PAGES4(n), PAGES4(n + 4), PAGES4(n + 8), PAGES4(n + 12)
#define PAGES64(n) PAGES16(n), PAGES16(n + 16), PAGES16(n + 32), PAGES16(n + 48)

static int *const table[512 * 512] = {PAGES64(0),   PAGES64(64),  PAGES64(128), PAGES64(192),
                                      PAGES64(256), PAGES64(320), PAGES64(384), PAGES64(448)};

int *const *relocated_table(void) { return table; }
int *relocated_places(void) { return places; }

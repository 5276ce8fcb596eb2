/*
 * A memory program that knows what every byte of its memory must be.
 *
 * Each worker thread owns regions of memory and a model of them: one 32-bit word a page says what the page must contain
 * (model.c). Random operations change memory and model together and check one against the other. Nothing here knows
 * farpage: the program must run clean natively, and must run just as clean when its memory is swapped under it.
 */
#ifndef STRESS_H
#define STRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PAGE 4096u
#define WORDS (PAGE / 8u)
#define MAX_THREADS 64
#define MAX_REGIONS 1024
#define MAX_CHILDREN 3
#define SMALL_BLOCKS 256
#define SCRATCH_PAGES 16u

enum kind { K_MMAP, K_MALLOC, K_BRK };

struct region {
	uint32_t id;      /* part of every word's value; survives moves and splits */
	uint32_t first;   /* number of page 0: pages keep their number when a hole splits the region */
	uint32_t version; /* of the last full write */
	enum kind kind;
	int prot;         /* of the whole region, as it was left by the last operation */
	bool patched;     /* mapped over in part: may be more than one mapping */
	char *base;
	size_t pages;
	uint32_t *state;  /* a word a page, 0: must read zero */
};

struct small {
	uint64_t *p;
	uint32_t words;
	uint32_t version;
};

struct child {
	pid_t pid;  /* to be waited for; 0 for an orphan, which reports on fd */
	int fd;     /* -1: none */
	const char *what;
};

struct worker {
	uint64_t rng;
	int index;
	int depth;              /* 0 in the program itself, 1 in its children, 2 in theirs */
	bool quiet_fork;        /* do not fork further */
	size_t target;          /* pages that this worker tries to have mapped */
	size_t pages;           /* pages that it has mapped */
	struct region *regions[MAX_REGIONS];
	int count;
	struct region *brk;     /* its one region at the program break (worker 0 only) */
	struct region *locked;  /* its one region with locked pages */
	struct small small[SMALL_BLOCKS];
	struct child children[MAX_CHILDREN];
	uint32_t *shared_version; /* of this worker's words in each page of the shared area */
	uint32_t *shared_tally;   /* this worker's additions to each page's counter */
	uint64_t *expect;       /* one page */
	char *scratch;          /* SCRATCH_PAGES, page aligned */
	uint64_t op;            /* number and name of the operation that runs */
	const char *op_name;
	uint64_t checks;        /* pages checked */
	uint64_t forks;
	uint64_t refused;       /* mremap of a patched region refused */
};

/* What all workers share. */
struct world {
	uint64_t seed;
	int threads;
	char *shared;           /* word w of a page belongs to worker w % threads; the last word is a counter */
	size_t shared_pages;
	bool forks;
	const char *tmpdir;
};
extern struct world world;
extern __thread struct worker *self;

struct op {
	const char *name;
	unsigned weight;
	void (*run)(struct worker *);
	const char *help;
};

/* model.c */
uint64_t rnd(struct worker *w);
size_t below(struct worker *w, size_t n);
bool one_in(struct worker *w, size_t n);
void fail(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
void need(bool ok, const char *what);
void fill_page(uint64_t *out, const struct region *r, size_t page, uint32_t version);
void expect_page(uint64_t *out, const struct region *r, size_t page);
void check_page(struct worker *w, struct region *r, size_t page);
void check_copy(struct worker *w, struct region *r, size_t page, const void *copy);
void write_page(struct region *r, size_t page, uint32_t version);
void poke_page(struct worker *w, struct region *r, size_t page);
void settle_page(struct worker *w, struct region *r, size_t page);
uint32_t next_version(struct region *r);
void set_written(struct region *r, size_t page, uint32_t version);
void set_zero(struct region *r, size_t page, size_t pages);
void set_maybe_zero(struct region *r, size_t page, size_t pages);
struct region *add_region(struct worker *w, enum kind kind, void *base, size_t pages);
void drop_region(struct worker *w, struct region *r);
bool release_region(struct worker *w, struct region *r);
void resize_model(struct worker *w, struct region *r, size_t pages);
struct region *split_region(struct worker *w, struct region *r, size_t at, size_t skip);
enum { PICK_ANY, PICK_WRITE, PICK_MMAP };
struct region *pick(struct worker *w, int how);
void pick_range(struct worker *w, const struct region *r, size_t most, size_t *start, size_t *len);
void make_readable(struct region *r);
void make_writable(struct region *r);
void unlock_region(struct worker *w);
void check_all(struct worker *w);
void check_small(struct worker *w, int i);
void fill_small(struct worker *w, int i, uint32_t words);
void shared_visit(struct worker *w, size_t page, bool write);
void constants_init(void);
void constants_check(struct worker *w, size_t samples);

/* ops_mem.c, ops_sys.c, ops_fork.c: the operations, each table ended by a null name */
extern const struct op mem_ops[], sys_ops[], fork_ops[];
void new_mapping(struct worker *w);
void exchange_drain(struct worker *w);
void reap(struct worker *w, bool wait_all);

/* stress.c */
void random_op(struct worker *w);

#endif

/* Operations on memory itself: mapping, writing, checking, giving back. */
#define _GNU_SOURCE
#include "stress.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#define RW (PROT_READ | PROT_WRITE)

/* Sizes from a page to a quarter of the worker's share, evenly spread over the powers of two. */
static size_t some_pages(struct worker *w)
{
	size_t most = w->target / 4 < 8 ? 8 : w->target / 4, n = 1;

	if (most > 4096)
		most = 4096;
	while (n < most && !one_in(w, 6))
		n *= 2;
	n += below(w, n);
	return n > most ? most : n;
}

static void write_range(struct region *r, size_t start, size_t len)
{
	uint32_t version = next_version(r);

	for (size_t i = start; i < start + len; i++)
		write_page(r, i, version);
}

static void check_range(struct worker *w, struct region *r, size_t start, size_t len)
{
	for (size_t i = start; i < start + len; i++)
		check_page(w, r, i);
}

void new_mapping(struct worker *w)
{
	if (w->count >= MAX_REGIONS - 2)
		return;
	size_t n = some_pages(w);
	int flags = MAP_PRIVATE | MAP_ANONYMOUS;

	if (one_in(w, 8))
		flags |= MAP_NORESERVE;
	if (n <= 64 && one_in(w, 8))
		flags |= MAP_POPULATE;
	void *p = mmap(NULL, n * PAGE, RW, flags, -1, 0);
	need(p != MAP_FAILED, "mmap");
	struct region *r = add_region(w, K_MMAP, p, n);
	if (one_in(w, 4))
		check_range(w, r, 0, n);
	if (!one_in(w, 6))
		write_range(r, 0, n);
}

static void op_malloc(struct worker *w)
{
	if (w->count >= MAX_REGIONS - 2)
		return;
	size_t n = some_pages(w);
	bool zeroed = one_in(w, 3);
	/* Not page aligned: the model's pages straddle the kernel's. */
	char *p = zeroed ? calloc(n, PAGE) : malloc(n * PAGE);

	need(p != NULL, "malloc");
	struct region *r = add_region(w, K_MALLOC, p, n);
	if (!zeroed || one_in(w, 2))
		write_range(r, 0, n);
}

static void op_realloc(struct worker *w)
{
	for (int i = 0; i < w->count; i++) {
		struct region *r = w->regions[i];
		if (r->kind != K_MALLOC || !one_in(w, 4))
			continue;
		size_t old = r->pages, n = some_pages(w);
		char *p = realloc(r->base, n * PAGE);
		need(p != NULL, "realloc");
		r->base = p;
		resize_model(w, r, n);
		if (n > old)
			write_range(r, old, n - old);
		return;
	}
}

static void op_small(struct worker *w)
{
	for (int turn = 0; turn < 32; turn++) {
		int i = below(w, SMALL_BLOCKS);
		struct small *s = &w->small[i];
		uint32_t words = 1 + below(w, one_in(w, 8) ? 4096 : 100);

		check_small(w, i);
		if (!s->p) {
			s->p = malloc(words * 8);
			need(s->p != NULL, "malloc");
			fill_small(w, i, words);
		} else if (one_in(w, 3)) {
			s->p = realloc(s->p, words * 8);
			need(s->p != NULL, "realloc");
			if (words < s->words)
				s->words = words;
			check_small(w, i);
			fill_small(w, i, words);
		} else if (one_in(w, 3)) {
			free(s->p);
			s->p = NULL;
		} else {
			fill_small(w, i, s->words);
		}
	}
}

/* The program break, which glibc's malloc shares: only the main thread's arena uses it, so only worker 0 does. */
static void op_brk(struct worker *w)
{
	struct region *r = w->brk;

	if (w->index != 0)
		return;
	if (!r) {
		size_t n = 1 + below(w, 256), skew = -(uintptr_t)sbrk(0) % PAGE;
		char *p = sbrk(n * PAGE + skew);
		need(p != (void *)-1, "sbrk");
		/* A break that came down before must not bring its old content up again. */
		w->brk = r = add_region(w, K_BRK, p + skew, n);
		check_range(w, r, 0, n);
		write_range(r, 0, n);
		return;
	}
	if ((char *)sbrk(0) != r->base + r->pages * PAGE) {
		/* malloc has moved the break: this region stays for good, the next one lies higher. */
		if (one_in(w, 50))
			w->brk = NULL;
		return;
	}
	make_writable(r);
	if (one_in(w, 4)) {
		release_region(w, r);
	} else if (one_in(w, 2) && r->pages > 1) {
		size_t n = 1 + below(w, r->pages - 1);
		need(sbrk(-(intptr_t)(n * PAGE)) != (void *)-1, "sbrk down");
		resize_model(w, r, r->pages - n);
	} else if (r->pages < 512) {
		size_t n = 1 + below(w, 64), old = r->pages;
		need(sbrk(n * PAGE) == r->base + old * PAGE, "sbrk up");
		resize_model(w, r, old + n);
		check_range(w, r, old, n);
		if (one_in(w, 2))
			write_range(r, old, n);
	}
}

static void op_write(struct worker *w)
{
	struct region *r = pick(w, PICK_WRITE);
	size_t start, len;

	if (!r)
		return;
	pick_range(w, r, one_in(w, 8) ? r->pages : 64, &start, &len);
	write_range(r, start, len);
}

static void op_poke(struct worker *w)
{
	struct region *r = pick(w, PICK_WRITE);

	for (int i = 0; r && i < 16; i++)
		poke_page(w, r, below(w, r->pages));
}

static void op_check(struct worker *w)
{
	struct region *r = pick(w, PICK_ANY);
	size_t start, len;

	if (!r)
		return;
	pick_range(w, r, 64, &start, &len);
	check_range(w, r, start, len);
}

static void op_sweep(struct worker *w)
{
	struct region *r = pick(w, PICK_ANY);

	if (r)
		check_range(w, r, 0, r->pages);
}

static void op_back(struct worker *w)
{
	struct region *r = pick(w, PICK_ANY);

	for (size_t i = r ? r->pages : 0; i-- > 0;)
		check_page(w, r, i);
}

static void op_probe(struct worker *w)
{
	for (int i = 0; i < 128 && w->count; i++) {
		struct region *r = w->regions[below(w, w->count)];
		make_readable(r);
		check_page(w, r, below(w, r->pages));
	}
}

static void op_unmap(struct worker *w)
{
	struct region *r = pick(w, PICK_ANY);

	if (!r)
		return;
	if (r == w->locked && one_in(w, 2))
		unlock_region(w);
	release_region(w, r);
}

/* Unmaps a part: the head, the tail or a hole in the middle. */
static void op_hole(struct worker *w)
{
	struct region *r = pick(w, PICK_MMAP);
	size_t start, len;

	if (!r || r->pages < 2 || w->count >= MAX_REGIONS - 2)
		return;
	pick_range(w, r, r->pages - 1, &start, &len);
	need(munmap(r->base + start * PAGE, len * PAGE) == 0, "munmap of a part");
	if (start + len < r->pages) {
		struct region *right = split_region(w, r, start, len);
		check_page(w, right, 0);
	} else {
		resize_model(w, r, start);
	}
	if (start) {
		check_page(w, r, start - 1);
	} else {
		drop_region(w, r);
		free(r->state);
		free(r);
	}
}

/* mremap refuses a range of more than one mapping, which a region that was mapped over may be. */
static bool moved(struct worker *w, struct region *r, void *to)
{
	if (to != MAP_FAILED)
		return true;
	if (errno != EFAULT || !r->patched)
		need(false, "mremap");
	w->refused++;
	return false;
}

static void op_grow(struct worker *w)
{
	struct region *r = pick(w, PICK_MMAP);

	if (!r)
		return;
	size_t old = r->pages, n = old + 1 + below(w, old);
	void *p = mremap(r->base, old * PAGE, n * PAGE, MREMAP_MAYMOVE);
	if (!moved(w, r, p))
		return;
	r->base = p;
	resize_model(w, r, n);
	check_page(w, r, below(w, old));
	check_range(w, r, old, n - old);
	if (!one_in(w, 4))
		write_range(r, old, n - old);
}

static void op_shrink(struct worker *w)
{
	struct region *r = pick(w, PICK_MMAP);

	if (!r || r->pages < 2)
		return;
	size_t n = 1 + below(w, r->pages - 1);
	void *p = mremap(r->base, r->pages * PAGE, n * PAGE, one_in(w, 2) ? MREMAP_MAYMOVE : 0);
	if (!moved(w, r, p))
		return;
	r->base = p;
	resize_model(w, r, n);
	check_page(w, r, n - 1);
}

/*
 * Moves a region onto a reserved hole, the same size or not. Not one that was mapped over: kernels from 6.17 on move
 * a range of several mappings one by one, and with a userfaultfd they stop halfway (EFAULT, the first one moved).
 */
static void op_move(struct worker *w)
{
	struct region *r = pick(w, PICK_MMAP);

	if (!r || r->patched)
		return;
	size_t old = r->pages, n = one_in(w, 3) ? 1 + below(w, 2 * old) : old;
	char *hole = mmap(NULL, n * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	need(hole != MAP_FAILED, "mmap of a hole");
	void *p = mremap(r->base, old * PAGE, n * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, hole);
	/* When it is refused the hole may be gone, and be another thread's by now: it is not unmapped here. */
	if (!moved(w, r, p))
		return;
	r->base = hole;
	resize_model(w, r, n);
	if (n > old)
		check_range(w, r, old, n - old);
	check_page(w, r, below(w, n));
}

static void op_dontneed(struct worker *w)
{
	struct region *r = pick(w, PICK_WRITE);
	size_t start, len;

	if (!r || r->kind == K_MALLOC)
		return;
	if (r == w->locked)
		unlock_region(w);
	pick_range(w, r, one_in(w, 4) ? r->pages : 256, &start, &len);
	need(madvise(r->base + start * PAGE, len * PAGE, MADV_DONTNEED) == 0, "MADV_DONTNEED");
	set_zero(r, start, len);
	if (one_in(w, 2))
		check_range(w, r, start, len);
	if (one_in(w, 3))
		write_range(r, start, len);
}

static void op_free(struct worker *w)
{
	struct region *r = pick(w, PICK_WRITE);
	size_t start, len;

	if (!r || r->kind == K_MALLOC)
		return;
	if (r == w->locked)
		unlock_region(w);
	pick_range(w, r, 256, &start, &len);
	need(madvise(r->base + start * PAGE, len * PAGE, MADV_FREE) == 0, "MADV_FREE");
	set_maybe_zero(r, start, len);
	if (one_in(w, 3))
		write_range(r, start, 1 + below(w, len));
}

/* Makes guards, looks at what is beside them, and removes them. The kernel has them since Linux 6.13. */
static void op_guard(struct worker *w)
{
	enum { GUARD_INSTALL = 102, GUARD_REMOVE };
	struct region *r = pick(w, PICK_WRITE);
	size_t start, len;

	if (!r || r->kind == K_MALLOC)
		return;
	if (r == w->locked)
		unlock_region(w);
	pick_range(w, r, 64, &start, &len);
	char *at = r->base + start * PAGE;
	if (madvise(at, len * PAGE, GUARD_INSTALL)) {
		need(errno == EINVAL, "MADV_GUARD_INSTALL");
		return;
	}
	for (int i = 0; i < 3; i++) {
		if (start > (size_t)i)
			check_page(w, r, start - 1 - i);
		if (start + len + i < r->pages)
			check_page(w, r, start + len + i);
	}
	errno = 0;
	need(getrandom(at + below(w, len) * PAGE, 1, 0) == -1 && errno == EFAULT, "a guard");
	need(madvise(at, len * PAGE, GUARD_REMOVE) == 0, "MADV_GUARD_REMOVE");
	set_zero(r, start, len);
	if (one_in(w, 2))
		check_range(w, r, start, len);
	if (one_in(w, 3))
		write_range(r, start, len);
}

static void op_overmap(struct worker *w)
{
	struct region *r = pick(w, PICK_MMAP);
	size_t start, len;

	if (!r)
		return;
	pick_range(w, r, 128, &start, &len);
	char *at = r->base + start * PAGE;
	need(mmap(at, len * PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at, "mmap over a region");
	r->patched = true;
	set_zero(r, start, len);
	if (one_in(w, 2))
		check_range(w, r, start, len);
	if (one_in(w, 2))
		write_range(r, start, len);
}

/* Takes access rights away: from a part and gives them back, or from the whole region until it is used next. */
static void op_protect(struct worker *w)
{
	struct region *r = pick(w, PICK_MMAP);
	size_t start, len;

	if (!r)
		return;
	if (one_in(w, 3)) {
		r->prot = one_in(w, 2) ? PROT_READ : PROT_NONE;
		need(mprotect(r->base, r->pages * PAGE, r->prot) == 0, "mprotect");
		return;
	}
	pick_range(w, r, 64, &start, &len);
	char *at = r->base + start * PAGE;
	bool none = one_in(w, 3);
	need(mprotect(at, len * PAGE, none ? PROT_NONE : PROT_READ) == 0, "mprotect of a part");
	if (!none)
		check_range(w, r, start, len);
	else if (start)
		check_page(w, r, start - 1);
	need(mprotect(at, len * PAGE, RW) == 0, "mprotect of a part back");
	poke_page(w, r, start);
	check_range(w, r, start, len);
}

/* Advice that must not change what memory contains. The kernel may refuse any of it. */
static void op_advise(struct worker *w)
{
	static const int advice[] = { MADV_WILLNEED, MADV_COLD, MADV_PAGEOUT, MADV_HUGEPAGE, MADV_NOHUGEPAGE,
				      MADV_POPULATE_READ, MADV_POPULATE_WRITE, MADV_NORMAL, MADV_SEQUENTIAL };
	struct region *r = pick(w, PICK_MMAP);

	if (!r)
		return;
	int a = advice[below(w, sizeof advice / sizeof *advice)];
	if ((a == MADV_POPULATE_READ || a == MADV_POPULATE_WRITE) && r->pages > 256)
		return;
	(void)!madvise(r->base, r->pages * PAGE, a);
	check_page(w, r, below(w, r->pages));
}

/* Locks a small region's pages until another operation needs it unlocked. */
static void op_lock(struct worker *w)
{
	unlock_region(w);
	for (int i = 0; i < w->count; i++) {
		struct region *r = w->regions[i];
		if (r->kind != K_MMAP || r->pages > 64 || !one_in(w, 4))
			continue;
		make_writable(r);
		if (mlock(r->base, r->pages * PAGE) != 0)
			return;
		w->locked = r;
		check_range(w, r, 0, r->pages);
		poke_page(w, r, below(w, r->pages));
		return;
	}
}

/* All workers meet on the same pages, each on its own words. */
static void op_shared(struct worker *w)
{
	static uint32_t meeting;
	size_t start = below(w, world.shared_pages);

	if (one_in(w, 2))
		start = __atomic_fetch_add(&meeting, 1, __ATOMIC_RELAXED) % world.shared_pages;
	for (size_t i = 0; i < 8; i++)
		shared_visit(w, (start + i) % world.shared_pages, one_in(w, 2));
}

/* Workers hand regions to each other. */
static struct region *mailbox[16];
static pthread_mutex_t mailbox_lock = PTHREAD_MUTEX_INITIALIZER;

static void op_exchange(struct worker *w)
{
	struct region *r = pick(w, PICK_MMAP);

	/* A child may have been forked while another thread held the lock. */
	if (!r || w->depth || w->count >= MAX_REGIONS - 2)
		return;
	drop_region(w, r);
	pthread_mutex_lock(&mailbox_lock);
	struct region **slot = &mailbox[below(w, 16)], *got = *slot;
	*slot = r;
	pthread_mutex_unlock(&mailbox_lock);
	if (!got)
		return;
	w->regions[w->count++] = got;
	w->pages += got->pages;
	check_range(w, got, 0, got->pages);
}

/* At the end: what was handed out and never taken. */
void exchange_drain(struct worker *w)
{
	for (int i = 0; i < 16; i++) {
		struct region *r = mailbox[i];
		if (r)
			check_range(w, r, 0, r->pages);
	}
}

const struct op mem_ops[] = {
	{ "map", 20, new_mapping, "map a region, mostly written at once" },
	{ "malloc", 10, op_malloc, "malloc or calloc a region" },
	{ "realloc", 5, op_realloc, "change a malloc'ed region's size" },
	{ "small", 20, op_small, "malloc, realloc, free small blocks" },
	{ "brk", 10, op_brk, "move the program break up and down (first thread)" },
	{ "write", 60, op_write, "write whole pages" },
	{ "poke", 60, op_poke, "write a few words of some pages" },
	{ "check", 60, op_check, "read and check some pages" },
	{ "sweep", 10, op_sweep, "read and check a region forwards" },
	{ "back", 5, op_back, "read and check a region backwards" },
	{ "probe", 20, op_probe, "read and check pages anywhere" },
	{ "unmap", 8, op_unmap, "unmap or free a region" },
	{ "hole", 8, op_hole, "unmap a part of a region" },
	{ "grow", 6, op_grow, "mremap to a larger size" },
	{ "shrink", 6, op_shrink, "mremap to a smaller size" },
	{ "move", 6, op_move, "mremap onto a reserved hole" },
	{ "dontneed", 12, op_dontneed, "MADV_DONTNEED: zeros after" },
	{ "guard", 8, op_guard, "MADV_GUARD_INSTALL, MADV_GUARD_REMOVE: zeros after" },
	{ "free", 8, op_free, "MADV_FREE: old or zeros until written" },
	{ "overmap", 6, op_overmap, "mmap over a part of a region: zeros after" },
	{ "protect", 8, op_protect, "mprotect and back" },
	{ "advise", 8, op_advise, "madvise that must not change content" },
	{ "lock", 4, op_lock, "mlock a small region for a while" },
	{ "shared", 40, op_shared, "pages that all threads write to" },
	{ "exchange", 6, op_exchange, "hand a region to another thread" },
	{ 0 },
};

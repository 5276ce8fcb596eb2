/*
 * The model: what each page must contain, and how to say precisely what it contains instead.
 *
 *   state of a page   | version:27 | maybe:1 | pokes:4 |
 *
 * version 0 is a page of zeros. A full write of version v gives every word its value for v; after that up to 15 pokes
 * each overwrite a few words, chosen by (version, number of the poke). maybe: the page was given to MADV_FREE, so it
 * may also be all zeros until it is written again.
 *
 *   value of a word   | version:16 | poke:4 | region:16 | page:19 | word:9 |
 *
 * as such (compressible), or mixed by an invertible function (incompressible), or the same for the whole page
 * (same-filled); which, is a hash of page and version. So a wrong word tells where it came from.
 */
#include "stress.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define POKES 15u
#define MAYBE 16u
#define VERSION(state) ((state) >> 5)
#define VERSION_MAX ((1u << 27) - 1)

__thread struct worker *self;

/* --- random numbers (splitmix64) --- */

static uint64_t mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

/* The inverse of mix(), for messages. */
static uint64_t unmix(uint64_t x)
{
	x = (x ^ (x >> 31) ^ (x >> 62)) * 0x319642b2d24d8ec3u;
	x = (x ^ (x >> 27) ^ (x >> 54)) * 0x96de1b173f119089u;
	return x ^ (x >> 30) ^ (x >> 60);
}

uint64_t rnd(struct worker *w)
{
	return mix(w->rng += 0x9e3779b97f4a7c15u);
}

size_t below(struct worker *w, size_t n)
{
	return n < 2 ? 0 : rnd(w) % n;
}

bool one_in(struct worker *w, size_t n)
{
	return below(w, n) == 0;
}

/* --- failing --- */

/* Says what is wrong and ends the process at once, so that nothing covers the tracks. */
void fail(const char *fmt, ...)
{
	char buf[1024];
	va_list ap;
	int n = 0;

	if (self)
		n = snprintf(buf, sizeof buf, "stress: FAILED seed %llu thread %d op %llu (%s) pid %d depth %d: ",
			     (unsigned long long)world.seed, self->index, (unsigned long long)self->op,
			     self->op_name ? self->op_name : "-", (int)getpid(), self->depth);
	else
		n = snprintf(buf, sizeof buf, "stress: FAILED seed %llu: ", (unsigned long long)world.seed);
	va_start(ap, fmt);
	n += vsnprintf(buf + n, sizeof buf - n - 1, fmt, ap);
	va_end(ap);
	if (n > (int)sizeof buf - 1)
		n = sizeof buf - 1;
	buf[n++] = '\n';
	if (write(2, buf, n) < 0)
		_exit(98);
	_exit(99);
}

void need(bool ok, const char *what)
{
	if (!ok)
		fail("%s: %s", what, strerror(errno));
}

static void describe(char *out, size_t size, uint64_t v)
{
	uint64_t forms[2] = { v, unmix(v) };

	if (v == 0) {
		snprintf(out, size, "zero");
		return;
	}
	for (int i = 0; i < 2; i++) {
		uint64_t f = forms[i];
		uint32_t id = (f >> 28) & 0xffff;
		/* Regions are numbered from 1 up; a random word looks like a high number. */
		if (id && id < 0x4000) {
			snprintf(out, size, "region %u page %u word %u version %u poke %u", id,
				 (uint32_t)(f >> 9) & 0x7ffff, (uint32_t)f & 0x1ff, (uint32_t)(f >> 48),
				 (uint32_t)(f >> 44) & 15);
			return;
		}
	}
	snprintf(out, size, "no word of this program");
}

static void mismatch(const struct region *r, size_t page, const uint64_t *want, const uint64_t *got, const void *addr)
{
	char is[128], should[128];
	size_t bad = 0, zeros = 0, at = WORDS;

	for (size_t i = 0; i < WORDS; i++) {
		zeros += got[i] == 0;
		if (want[i] != got[i]) {
			bad++;
			if (at == WORDS)
				at = i;
		}
	}
	if (at == WORDS)
		fail("region %u page %zu at %p: read wrong, and right when read again", r->id, page, addr);
	describe(is, sizeof is, got[at]);
	describe(should, sizeof should, want[at]);
	fail("region %u kind %d page %zu (number %u) of %zu at %p offset %zu: expected %016llx (%s), got %016llx (%s); "
	     "state %08x, %zu words wrong, %zu zero",
	     r->id, r->kind, page, r->first + (uint32_t)page, r->pages, addr, at * 8, (unsigned long long)want[at], should,
	     (unsigned long long)got[at], is, r->state[page], bad, zeros);
}

/* --- what a page must contain --- */

static uint64_t word_value(uint32_t id, uint32_t number, uint32_t word, uint32_t version, uint32_t poke, int style)
{
	uint64_t v = (uint64_t)(version & 0xffff) << 48 | (uint64_t)poke << 44 | (uint64_t)(id & 0xffff) << 28 |
		     (uint64_t)(number & 0x7ffff) << 9 | word;

	return style == 0 ? v : mix(v);
}

void fill_page(uint64_t *out, const struct region *r, size_t page, uint32_t version)
{
	uint32_t number = r->first + (uint32_t)page;
	unsigned style = mix((uint64_t)r->id << 40 ^ (uint64_t)number << 8 ^ version) & 15;

	if (version == 0) {
		memset(out, 0, PAGE);
	} else if (style < 8) {
		for (uint32_t i = 0; i < WORDS; i++)
			out[i] = word_value(r->id, number, i, version, 0, 0);
	} else if (style < 14) {
		for (uint32_t i = 0; i < WORDS; i++)
			out[i] = word_value(r->id, number, i, version, 0, 1);
	} else {
		uint64_t v = word_value(r->id, number, 0, version, 0, 1);
		for (uint32_t i = 0; i < WORDS; i++)
			out[i] = v;
	}
}

static void poke_words(uint64_t *out, const struct region *r, size_t page, uint32_t version, uint32_t poke)
{
	uint32_t number = r->first + (uint32_t)page;
	uint64_t h = mix((uint64_t)r->id << 44 ^ (uint64_t)number << 12 ^ (uint64_t)version << 4 ^ poke);
	unsigned n = 1 + (h & 3);

	for (unsigned i = 0; i < n; i++) {
		uint32_t word = (h >> (4 + 9 * i)) & (WORDS - 1);
		out[word] = word_value(r->id, number, word, version, poke, 1);
	}
}

void expect_page(uint64_t *out, const struct region *r, size_t page)
{
	uint32_t s = r->state[page];

	fill_page(out, r, page, VERSION(s));
	for (uint32_t k = 1; k <= (s & POKES); k++)
		poke_words(out, r, page, VERSION(s), k);
}

static bool all_zero(const uint64_t *p)
{
	for (unsigned i = 0; i < WORDS; i++)
		if (p[i])
			return false;
	return true;
}

static uint64_t *page_at(const struct region *r, size_t page)
{
	return (uint64_t *)(r->base + page * PAGE);
}

/* Checks `got`, the page itself or what a system call copied from it. */
void check_copy(struct worker *w, struct region *r, size_t page, const void *got)
{
	w->checks++;
	expect_page(w->expect, r, page);
	if (memcmp(w->expect, got, PAGE) == 0)
		return;
	if ((r->state[page] & MAYBE) && all_zero(got)) {
		if (got == page_at(r, page))
			r->state[page] = 0;
		return;
	}
	mismatch(r, page, w->expect, got, page_at(r, page));
}

void check_page(struct worker *w, struct region *r, size_t page)
{
	check_copy(w, r, page, page_at(r, page));
}

uint32_t next_version(struct region *r)
{
	r->version = r->version >= VERSION_MAX ? 1 : r->version + 1;
	return r->version;
}

void set_written(struct region *r, size_t page, uint32_t version)
{
	r->state[page] = version << 5;
}

void write_page(struct region *r, size_t page, uint32_t version)
{
	fill_page(page_at(r, page), r, page, version);
	set_written(r, page, version);
}

/* A page given to MADV_FREE keeps what it has once it is written: finds out what that is. */
void settle_page(struct worker *w, struct region *r, size_t page)
{
	volatile uint64_t *p = page_at(r, page);

	if (!(r->state[page] & MAYBE))
		return;
	expect_page(w->expect, r, page);
	uint64_t first = w->expect[0];
	p[0] = first;
	w->checks++;
	if (memcmp(w->expect, (void *)p, PAGE) == 0) {
		r->state[page] &= ~MAYBE;
		return;
	}
	p[0] = 0;
	if (!all_zero((void *)p)) {
		p[0] = first;
		mismatch(r, page, w->expect, (void *)p, (void *)p);
	}
	r->state[page] = 0;
}

/* Overwrites a few words of a page. */
void poke_page(struct worker *w, struct region *r, size_t page)
{
	settle_page(w, r, page);
	uint32_t s = r->state[page];
	if ((s & POKES) == POKES) {
		write_page(r, page, next_version(r));
		return;
	}
	r->state[page] = s + 1;
	poke_words(page_at(r, page), r, page, VERSION(s), (s & POKES) + 1);
}

void set_zero(struct region *r, size_t page, size_t pages)
{
	memset(r->state + page, 0, pages * sizeof *r->state);
}

void set_maybe_zero(struct region *r, size_t page, size_t pages)
{
	for (size_t i = page; i < page + pages; i++)
		if (r->state[i])
			r->state[i] |= MAYBE;
}

/* --- regions --- */

struct region *add_region(struct worker *w, enum kind kind, void *base, size_t pages)
{
	static uint32_t last_id;
	struct region *r = calloc(1, sizeof *r);

	need(r != NULL && w->count < MAX_REGIONS, "no room for a region");
	/* Numbers above 0x4000 come around again: see describe(). */
	r->id = 1 + __atomic_fetch_add(&last_id, 1, __ATOMIC_RELAXED) % 0x3fff;
	r->kind = kind;
	r->prot = PROT_READ | PROT_WRITE;
	r->base = base;
	r->pages = pages;
	r->state = calloc(pages, sizeof *r->state);
	need(r->state != NULL, "calloc");
	w->regions[w->count++] = r;
	w->pages += pages;
	return r;
}

/* Forgets a region, whose memory is gone or belongs to another worker now. */
void drop_region(struct worker *w, struct region *r)
{
	for (int i = 0; i < w->count; i++)
		if (w->regions[i] == r) {
			w->regions[i] = w->regions[--w->count];
			break;
		}
	w->pages -= r->pages;
	if (w->locked == r)
		w->locked = NULL;
	if (w->brk == r)
		w->brk = NULL;
}

/* Gives a region's memory back. False: the program break has moved on, so it stays. */
bool release_region(struct worker *w, struct region *r)
{
	size_t bytes = r->pages * PAGE;

	if (r->kind == K_BRK) {
		if ((char *)sbrk(0) != r->base + bytes)
			return false;
		need(sbrk(-(intptr_t)bytes) != (void *)-1, "sbrk");
	} else if (r->kind == K_MALLOC) {
		free(r->base);
	} else {
		need(munmap(r->base, bytes) == 0, "munmap");
	}
	drop_region(w, r);
	free(r->state);
	free(r);
	return true;
}

void resize_model(struct worker *w, struct region *r, size_t pages)
{
	uint32_t *s = realloc(r->state, (pages ? pages : 1) * sizeof *s);

	need(s != NULL, "realloc");
	if (pages > r->pages)
		memset(s + r->pages, 0, (pages - r->pages) * sizeof *s);
	r->state = s;
	w->pages += pages - r->pages;
	r->pages = pages;
}

/* Ends r at page `at`; what follows `skip` pages after that becomes a region of its own, which is returned. */
struct region *split_region(struct worker *w, struct region *r, size_t at, size_t skip)
{
	size_t rest = at + skip, n = r->pages - rest;
	struct region *right = add_region(w, r->kind, r->base + rest * PAGE, n);

	right->id = r->id;
	right->first = r->first + (uint32_t)rest;
	right->version = r->version;
	right->prot = r->prot;
	right->patched = r->patched;
	memcpy(right->state, r->state + rest, n * sizeof *r->state);
	resize_model(w, r, at);
	return right;
}

void make_readable(struct region *r)
{
	if (!(r->prot & PROT_READ))
		make_writable(r);
}

void make_writable(struct region *r)
{
	if (r->prot == (PROT_READ | PROT_WRITE))
		return;
	need(mprotect(r->base, r->pages * PAGE, PROT_READ | PROT_WRITE) == 0, "mprotect back");
	r->prot = PROT_READ | PROT_WRITE;
}

void unlock_region(struct worker *w)
{
	struct region *r = w->locked;

	if (r)
		need(munlock(r->base, r->pages * PAGE) == 0, "munlock");
	w->locked = NULL;
}

/* A random region, large ones more often; NULL: none of this sort. */
struct region *pick(struct worker *w, int how)
{
	struct region *best = NULL;

	for (int i = 0; i < 3 && w->count; i++) {
		struct region *r = w->regions[below(w, w->count)];
		if (how == PICK_MMAP && r->kind != K_MMAP)
			continue;
		if (!best || r->pages > best->pages)
			best = r;
	}
	if (!best)
		return NULL;
	if (how == PICK_ANY)
		make_readable(best);
	else
		make_writable(best);
	if (how == PICK_MMAP && best == w->locked)
		unlock_region(w);
	return best;
}

void pick_range(struct worker *w, const struct region *r, size_t most, size_t *start, size_t *len)
{
	if (most > r->pages)
		most = r->pages;
	*len = 1 + below(w, most);
	*start = below(w, r->pages - *len + 1);
}

/* --- the rest of what a worker knows --- */

void fill_small(struct worker *w, int i, uint32_t words)
{
	struct small *s = &w->small[i];

	s->words = words;
	s->version++;
	for (uint32_t k = 0; k < words; k++)
		s->p[k] = word_value(0x3fff, i, k & 511, s->version, k >> 9, 0);
}

void check_small(struct worker *w, int i)
{
	struct small *s = &w->small[i];

	for (uint32_t k = 0; s->p && k < s->words; k++) {
		uint64_t want = word_value(0x3fff, i, k & 511, s->version, k >> 9, 0);
		if (s->p[k] != want)
			fail("small block %d of %u words at %p, word %u: expected %016llx, got %016llx", i, s->words,
			     (void *)s->p, k, (unsigned long long)want, (unsigned long long)s->p[k]);
	}
}

/* Checks this worker's words of a page that all workers write to, and perhaps writes them anew. */
void shared_visit(struct worker *w, size_t page, bool write)
{
	uint64_t *p = (uint64_t *)(world.shared + page * PAGE);
	uint32_t version = w->shared_version[page];

	w->checks++;
	for (uint32_t i = w->index; i < WORDS - 1; i += world.threads) {
		uint64_t want = version ? word_value(0x3ffe, page, i, version, w->index, 1) : 0;
		uint64_t got = __atomic_load_n(&p[i], __ATOMIC_RELAXED);
		if (got != want)
			fail("shared page %zu at %p word %u: expected %016llx (version %u), got %016llx", page, (void *)p,
			     i, (unsigned long long)want, version, (unsigned long long)got);
		if (write)
			__atomic_store_n(&p[i], word_value(0x3ffe, page, i, version + 1, w->index, 1), __ATOMIC_RELAXED);
	}
	if (write) {
		w->shared_version[page] = version + 1;
		__atomic_fetch_add(&p[WORDS - 1], 1, __ATOMIC_RELAXED);
		w->shared_tally[page]++;
	}
}

/* Memory that is written once, before any thread starts: .bss and .data, which a fork inherits as well. */
#define CONSTANTS 65536u
static uint64_t bss_words[CONSTANTS];
static uint64_t data_words[1024] = { 1 };

void constants_init(void)
{
	for (uint32_t i = 0; i < CONSTANTS; i++)
		bss_words[i] = mix(i);
	for (uint32_t i = 0; i < 1024; i++)
		data_words[i] = mix(~(uint64_t)i);
}

void constants_check(struct worker *w, size_t samples)
{
	while (samples--) {
		size_t i = below(w, CONSTANTS), k = i % 1024;
		if (bss_words[i] != mix(i))
			fail("word %zu of .bss is %016llx", i, (unsigned long long)bss_words[i]);
		if (data_words[k] != mix(~(uint64_t)k))
			fail("word %zu of .data is %016llx", k, (unsigned long long)data_words[k]);
	}
}

/* Everything this worker knows. */
void check_all(struct worker *w)
{
	for (int i = 0; i < w->count; i++) {
		make_readable(w->regions[i]);
		for (size_t p = 0; p < w->regions[i]->pages; p++)
			check_page(w, w->regions[i], p);
	}
	for (int i = 0; i < SMALL_BLOCKS; i++)
		check_small(w, i);
	for (size_t p = 0; p < world.shared_pages; p++)
		shared_visit(w, p, false);
	constants_check(w, 1000);
}

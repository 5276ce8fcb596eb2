/* The command line, the threads, and which operation comes next. */
#define _GNU_SOURCE
#include "stress.h"

#include <errno.h>
#include <getopt.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct world world = { .seed = 1, .threads = 4, .forks = true, .tmpdir = "/tmp" };

#define MAX_OPS 64
static struct op ops[MAX_OPS];
static unsigned op_count, weights;
static const struct op *const tables[] = { mem_ops, sys_ops, fork_ops };

static uint64_t ops_each = 4000;
static double seconds;
static struct timespec started;

static double elapsed(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec - started.tv_sec + (now.tv_nsec - started.tv_nsec) / 1e9;
}

/* --- which operations --- */

static bool in_list(const char *list, const char *name)
{
	size_t n = strlen(name);

	for (const char *p = list; p && *p; p += strcspn(p, ","), p += *p == ',')
		if (strncmp(p, name, n) == 0 && (p[n] == 0 || p[n] == ','))
			return true;
	return false;
}

static void known_names(const char *list)
{
	char *copy = strdup(list ? list : "");

	for (char *name = strtok(copy, ","); name; name = strtok(NULL, ",")) {
		bool found = false;
		for (unsigned t = 0; t < 3; t++)
			for (const struct op *o = tables[t]; o->name; o++)
				found |= strcmp(o->name, name) == 0;
		if (!found) {
			fprintf(stderr, "stress: no operation is called '%s' (see --help)\n", name);
			exit(2);
		}
	}
	free(copy);
}

static void choose_ops(const char *only, const char *without)
{
	known_names(only);
	known_names(without);
	for (unsigned t = 0; t < 3; t++)
		for (const struct op *o = tables[t]; o->name; o++) {
			if ((only && !in_list(only, o->name)) || in_list(without, o->name))
				continue;
			if (tables[t] == fork_ops && !world.forks)
				continue;
			ops[op_count++] = *o;
			weights += o->weight;
		}
	if (!op_count) {
		fprintf(stderr, "stress: no operations are left\n");
		exit(2);
	}
}

static bool is_fork(const struct op *o)
{
	for (const struct op *f = fork_ops; f->name; f++)
		if (f->run == o->run)
			return true;
	return false;
}

/* One operation; inside another one (in a child, or while a child runs) none that forks. */
void random_op(struct worker *w)
{
	static __thread int nested;
	const char *outer = w->op_name;
	unsigned at = below(w, weights);
	const struct op *o = ops;

	/* Keep about the working set that was asked for. */
	for (int tries = 0; w->pages > w->target + w->target / 8 && tries < 8; tries++) {
		struct region *r = w->count ? w->regions[below(w, w->count)] : NULL;
		if (!r || !release_region(w, r))
			break;
	}
	while (w->pages < w->target * 3 / 4 && w->count < MAX_REGIONS / 2)
		new_mapping(w);
	while (at >= o->weight)
		at -= o++->weight;
	if (is_fork(o) && (nested || w->depth))
		return;
	nested++;
	w->op_name = o->name;
	o->run(w);
	w->op_name = outer;
	nested--;
}

/* --- threads --- */

static void *work(void *arg)
{
	struct worker *w = arg;

	self = w;
	for (w->op = 1; seconds > 0 ? elapsed() < seconds : w->op <= ops_each; w->op++) {
		random_op(w);
		if (w->op % 64 == 0)
			reap(w, false);
	}
	w->op_name = "end";
	unlock_region(w);
	reap(w, true);
	check_all(w);
	return NULL;
}

static void prepare(struct worker *w, int index, size_t pages)
{
	memset(w, 0, sizeof *w);
	w->index = index;
	w->rng = world.seed * 1000003u + index;
	w->target = pages;
	w->shared_version = calloc(world.shared_pages, sizeof(uint32_t));
	w->shared_tally = calloc(world.shared_pages, sizeof(uint32_t));
	w->expect = aligned_alloc(PAGE, PAGE);
	w->scratch = aligned_alloc(PAGE, SCRATCH_PAGES * PAGE);
	need(w->shared_version && w->shared_tally && w->expect && w->scratch, "memory for a worker");
}

static void on_signal(int sig, siginfo_t *info, void *context)
{
	const greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
	unsigned long ip = regs[REG_RIP];
	/* What is mapped there tells a wrong mapping from a wrong page. */
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[256];
	unsigned long at = (unsigned long)info->si_addr, from, to;
	while (maps && fgets(line, sizeof line, maps))
		if (sscanf(line, "%lx-%lx", &from, &to) == 2 &&
		    ((from <= at + (1 << 20) && at < to + (1 << 20)) || (from <= ip && ip < to)))
			fputs(line, stderr);
	fail("signal %d (%s) at address %p, instruction %#lx, error %llx", sig, sig == SIGSEGV ? "SIGSEGV" : "SIGBUS",
	     info->si_addr, ip, regs[REG_ERR]);
}

static void help(void)
{
	puts("usage: stress [OPTIONS]\n"
	     "Uses memory at random from several threads and checks every word. Exit status 99: memory was wrong.\n"
	     "  --seed N        which random sequence (default 1)\n"
	     "  --threads N     default 4\n"
	     "  --mb N          working set of all threads together, in MiB (default 256)\n"
	     "  --ops N         operations of each thread (default 4000)\n"
	     "  --seconds S     as long as this, instead of --ops\n"
	     "  --no-fork       start no processes\n"
	     "  --only A,B      only these operations (and mapping, so that there is memory)\n"
	     "  --without A,B   all but these\n"
	     "operations:");
	for (unsigned t = 0; t < 3; t++)
		for (const struct op *o = tables[t]; o->name; o++)
			printf("  %-10s %3u  %s\n", o->name, o->weight, o->help);
}

static uint64_t number(const char *text, const char *option)
{
	char *end;
	unsigned long long v = strtoull(text, &end, 10);

	if (end == text || *end || v == 0) {
		fprintf(stderr, "stress: --%s needs a number above 0, not '%s'\n", option, text);
		exit(2);
	}
	return v;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "seed", 1, 0, 's' },	   { "threads", 1, 0, 't' }, { "mb", 1, 0, 'm' },      { "ops", 1, 0, 'o' },
		{ "seconds", 1, 0, 'S' },  { "no-fork", 0, 0, 'F' }, { "only", 1, 0, 'O' },    { "without", 1, 0, 'W' },
		{ "help", 0, 0, 'h' },	   { 0 },
	};
	static struct worker workers[MAX_THREADS];
	pthread_t threads[MAX_THREADS];
	const char *only = NULL, *without = NULL;
	uint64_t mb = 256;
	int c, index;

	while ((c = getopt_long(argc, argv, "h", options, &index)) != -1) {
		switch (c) {
		case 's': world.seed = strtoull(optarg, NULL, 10); break;
		case 't': world.threads = number(optarg, "threads"); break;
		case 'm': mb = number(optarg, "mb"); break;
		case 'o': ops_each = number(optarg, "ops"); break;
		case 'S': seconds = number(optarg, "seconds"); break;
		case 'F': world.forks = false; break;
		case 'O': only = optarg; break;
		case 'W': without = optarg; break;
		case 'h': help(); return 0;
		default: return 2;
		}
	}
	if (optind < argc || world.threads < 1 || world.threads > MAX_THREADS) {
		fprintf(stderr, "stress: 1 to %d threads, no other arguments (see --help)\n", MAX_THREADS);
		return 2;
	}
	choose_ops(only, without);
	if (getenv("TMPDIR"))
		world.tmpdir = getenv("TMPDIR");
	clock_gettime(CLOCK_MONOTONIC, &started);
	/* Worker 0 moves the program break as well; malloc must not give it back behind its back. */
	mallopt(M_TRIM_THRESHOLD, 1 << 30);
	constants_init();

	static char signal_stack[65536];
	stack_t alt = { .ss_sp = signal_stack, .ss_size = sizeof signal_stack };
	struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK };
	sigaltstack(&alt, NULL);
	sigaction(SIGSEGV, &action, NULL);
	sigaction(SIGBUS, &action, NULL);

	/* An eighth of the working set is shared by all threads. */
	world.shared_pages = mb * 256 / 8;
	world.shared = mmap(NULL, world.shared_pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	need(world.shared != MAP_FAILED, "mmap");
	for (int i = 0; i < world.threads; i++)
		prepare(&workers[i], i, (mb * 256 - world.shared_pages) / world.threads);
	for (int i = 1; i < world.threads; i++) {
		errno = pthread_create(&threads[i], NULL, work, &workers[i]);
		need(errno == 0, "pthread_create");
	}
	work(&workers[0]);

	uint64_t ran = workers[0].op - 1, checks = workers[0].checks, forks = workers[0].forks, refused = workers[0].refused;
	for (int i = 1; i < world.threads; i++) {
		pthread_join(threads[i], NULL);
		ran += workers[i].op - 1;
		checks += workers[i].checks;
		forks += workers[i].forks;
		refused += workers[i].refused;
	}
	exchange_drain(&workers[0]);
	for (size_t p = 0; p < world.shared_pages; p++) {
		uint64_t want = 0, got = ((uint64_t *)(world.shared + p * PAGE))[WORDS - 1];
		for (int i = 0; i < world.threads; i++)
			want += workers[i].shared_tally[p];
		if (got != want)
			fail("shared page %zu: %llu additions by all threads, but the counter says %llu", p,
			     (unsigned long long)want, (unsigned long long)got);
	}
	printf("ok ops=%llu checks=%llu forks=%llu refused=%llu\n", (unsigned long long)ran, (unsigned long long)checks,
	       (unsigned long long)forks, (unsigned long long)refused);
	return 0;
}

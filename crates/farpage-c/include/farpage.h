/* farpage: memory larger than its RAM budget. C interface of explicit regions.
 *
 * Generated from crates/farpage-c/src by cbindgen; do not edit.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#ifndef FARPAGE_H
#define FARPAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/**
 * Smallest budget of a pager, bytes.
 */
#define FP_BUDGET_MIN (4 << 20)

/**
 * What a function returns: FP_OK (0), or why it did nothing. fp_strerror gives the code in words, fp_last_error the
 * last failure of the calling thread with its numbers and names.
 */
typedef enum fp_status {
  /**
   * Done.
   */
  FP_OK = 0,
  /**
   * A pointer is NULL that must not be.
   */
  FP_ERR_NULL = 1,
  /**
   * fp_config: its size is not one that fp_config_init sets, or a member has a value that does not exist.
   */
  FP_ERR_CONFIG = 2,
  /**
   * The budget is below FP_BUDGET_MIN, or absurdly large.
   */
  FP_ERR_BUDGET = 3,
  /**
   * A region must have at least one byte.
   */
  FP_ERR_ZERO_SIZE = 4,
  /**
   * The region does not fit into what is left of the pager's address space.
   */
  FP_ERR_TOO_LARGE = 5,
  /**
   * Offset and length do not lie in the region.
   */
  FP_ERR_RANGE = 6,
  /**
   * There is no such advice.
   */
  FP_ERR_ADVICE = 7,
  /**
   * More than three quarters of the budget would be pinned, or a page more than 127 times.
   */
  FP_ERR_PIN_LIMIT = 8,
  /**
   * The pager was made by the parent of this process.
   */
  FP_ERR_FORKED = 9,
  /**
   * The process has 64 pagers already.
   */
  FP_ERR_TOO_MANY_PAGERS = 10,
  /**
   * The kernel gives no userfaultfd (older than Linux 6.8, a sandbox; FP_FAULT_THREAD: no privilege). The command
   * farpage doctor says why.
   */
  FP_ERR_USERFAULTFD = 11,
  /**
   * A swap device cannot be understood or used.
   */
  FP_ERR_DEVICE = 12,
  /**
   * A system call failed; errno says how.
   */
  FP_ERR_OS = 13,
  /**
   * Another error; fp_last_error has it in words.
   */
  FP_ERR_OTHER = 14,
  /**
   * A page cannot be read back from its swap device.
   */
  FP_ERR_UNREADABLE = 15,
  /**
   * Libc's system calls cannot be looked at; fp_last_error says why.
   */
  FP_ERR_SYSTEM_CALLS = 16,
} fp_status;

/**
 * How a range will be used.
 */
typedef enum fp_advice {
  /**
   * Nothing is known: farpage looks at the faults.
   */
  FP_NORMAL = 0,
  /**
   * In ascending order: read ahead at once.
   */
  FP_SEQUENTIAL = 1,
  /**
   * In no order: do not read ahead.
   */
  FP_RANDOM = 2,
  /**
   * Soon: brought in now, as fp_region_prefetch.
   */
  FP_WILLNEED = 3,
  /**
   * Not any more: the content is dropped, and reads as zeros. Whole pages inside of the range only, and not those
   * that are pinned.
   */
  FP_DONTNEED = 4,
} fp_advice;

/**
 * What serves a fault.
 */
typedef enum fp_fault_mode {
  /**
   * The thread that has it, in a SIGBUS handler: fastest, works without privilege. A system call that is given
   * memory that is not present fails with EFAULT: see system_calls of fp_config, and fp_region_pin.
   */
  FP_FAULT_SIGNAL = 0,
  /**
   * A thread of the pager: system calls simply work. Needs a full userfaultfd (root, or /dev/userfaultfd).
   */
  FP_FAULT_THREAD = 1,
} fp_fault_mode;

/**
 * Blocks of memory: large ones are regions of a pager, small ones the program's malloc's.
 */
typedef struct fp_allocator fp_allocator;

/**
 * A RAM budget, swap devices, and the threads that keep regions within it.
 */
typedef struct fp_pager fp_pager;

/**
 * A range that is kept resident.
 */
typedef struct fp_pin fp_pin;

/**
 * Memory of a pager.
 */
typedef struct fp_region fp_region;

/**
 * How a pager shall be. Set by fp_config_init, then changed as wanted.
 */
typedef struct fp_config {
  /**
   * sizeof(fp_config) of the program; set by fp_config_init.
   */
  size_t size;
  /**
   * RAM for everything: pages of regions, swap cache, compressed pool, tables. Bytes; default 1 GiB.
   */
  uint64_t budget_bytes;
  /**
   * Swap devices in order, separated by ';', as for farpage run --swap: "zram,alg=zstd;file:/var/tmp,size=4G".
   * NULL: compressed RAM, then a file in /var/tmp.
   */
  const char *swap;
  /**
   * A fp_fault_mode; default FP_FAULT_SIGNAL.
   */
  uint32_t fault_mode;
  /**
   * Pages read ahead at most when accesses are in order; 1: none; 0: the default, 128.
   */
  uint32_t readahead_pages;
  /**
   * Threads that take pages out; 0: the default, one per CPU, at most 4.
   */
  uint32_t reclaim_threads;
  /**
   * 1: a child of fork has the pager and a copy of its regions too (not with FP_FAULT_THREAD); its budget is one of
   * its own. 0, the default: touching a region in a child is a SIGSEGV.
   */
  uint32_t inherit;
  /**
   * 1: the bytes that come back are compared with those that left, by a checksum of each page; a difference ends the
   * process with a message. 0: the default.
   */
  uint32_t verify;
  /**
   * 1: system calls of libc work on region memory that is not present, with FP_FAULT_SIGNAL too: libc's text is
   * changed in this process, once, so that its calls are looked at before the kernel sees them. 0, the default: they
   * fail with EFAULT. Not for what a device does after the call has returned: see fp_region_pin. And libc's calls
   * neither block SIGBUS nor replace its handler: what the program sets it reads back, and its handler gets what is
   * no region's.
   */
  uint32_t system_calls;
} fp_config;

/**
 * Numbers of a pager. Bytes where the name says so, else pages or counts since it was made.
 */
typedef struct fp_stats {
  /**
   * The budget.
   */
  uint64_t budget_bytes;
  /**
   * What counts against it: pages of regions, frames, pool, tables.
   */
  uint64_t used_bytes;
  /**
   * Pages present in regions.
   */
  uint64_t resident_bytes;
  /**
   * Pages in the swap cache: read ahead and not touched yet; in thread mode also taken out, still in RAM.
   */
  uint64_t cached_bytes;
  /**
   * Compressed pool.
   */
  uint64_t pool_bytes;
  /**
   * Uncompressed bytes that the pool stands for.
   */
  uint64_t pool_orig_bytes;
  /**
   * Pages in swap files.
   */
  uint64_t file_bytes;
  /**
   * Pinned.
   */
  uint64_t pinned_bytes;
  /**
   * Faults served.
   */
  uint64_t pgfault;
  /**
   * Faults that read a device.
   */
  uint64_t pgmajfault;
  /**
   * Pages read from devices, readahead included.
   */
  uint64_t pswpin;
  /**
   * Pages written to devices.
   */
  uint64_t pswpout;
  /**
   * Pages dropped without a write, because their copy was still the same.
   */
  uint64_t swpout_clean;
  /**
   * Pages found all zero when they went out.
   */
  uint64_t swpout_zero;
  /**
   * Zero pages served.
   */
  uint64_t swpin_zero;
  /**
   * Pages read ahead.
   */
  uint64_t swap_ra;
  /**
   * Faults served from the swap cache.
   */
  uint64_t workingset_refault_cached;
  /**
   * Faults by writing to a page that was write-protected to see that.
   */
  uint64_t wp_fault;
  /**
   * Faults that waited for memory.
   */
  uint64_t allocstall;
  /**
   * Pages taken above the budget because nothing could be swapped out.
   */
  uint64_t over_budget;
  /**
   * Of `swap_ra`, pages that were touched: exact where all pages read ahead stay unmapped until then, else
   * in proportion.
   */
  uint64_t swap_ra_hit;
  /**
   * Nanoseconds for which threads waited in faults, together.
   */
  uint64_t fault_wait_ns;
} fp_stats;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * What a code means, in English, without a newline. Never NULL, valid for ever; "unknown error code" for a number that
 * is no fp_status. Any thread, any time.
 */
const char *fp_strerror(int code);

/**
 * The last failure of a fp_ function in the calling thread, in English, with its details; "" if there was none. Never
 * NULL; valid until the next fp_ function fails in this thread, or the thread ends.
 */
const char *fp_last_error(void);

/**
 * Sets all members to their defaults.
 *
 * FP_ERR_NULL: config is NULL.
 *
 * Requires: `config` is NULL or can be written.
 */
enum fp_status fp_config_init(struct fp_config *config);

/**
 * Makes a pager and starts its threads. config: how; NULL: the defaults. *pager: the new pager, to be given to
 * fp_pager_free; NULL on failure. A text in config is not used after the call.
 *
 * The first pager with FP_FAULT_SIGNAL installs a SIGBUS handler for the process; SIGBUS of others goes on to the
 * program's handler. Threads that touch regions need some KiB of stack, and must not block SIGBUS, to which
 * system_calls of fp_config sees.
 *
 * FP_ERR_NULL, FP_ERR_CONFIG, FP_ERR_BUDGET, FP_ERR_USERFAULTFD, FP_ERR_DEVICE, FP_ERR_TOO_MANY_PAGERS,
 * FP_ERR_SYSTEM_CALLS, FP_ERR_OS (no address space, no threads).
 *
 * Requires: `config` is NULL or has at least the `size` that it says; its texts end in NUL. `pager` is NULL or can be
 * written.
 */
enum fp_status fp_pager_new(const struct fp_config *config,
                            struct fp_pager **pager);

/**
 * Gives a pager back. Regions of it stay usable until they are freed; what the pager holds goes with the last of them.
 * NULL: nothing happens.
 *
 * Requires: `pager` is NULL or from `fp_pager_new`, not freed before, and not in use by another call.
 */
void fp_pager_free(struct fp_pager *pager);

/**
 * Changes the budget, bytes. A smaller one is reached by and by. Any thread.
 *
 * FP_ERR_NULL, FP_ERR_BUDGET, FP_ERR_FORKED.
 *
 * Requires: `pager` is NULL or a living pager.
 */
enum fp_status fp_pager_resize_budget(const struct fp_pager *pager, uint64_t bytes);

/**
 * Numbers of the pager, now. stats: where they go; size: sizeof(fp_stats) of the program; members that this library
 * does not know become 0. Any thread.
 *
 * FP_ERR_NULL, FP_ERR_FORKED.
 *
 * Requires: `pager` is NULL or a living pager; `stats` is NULL or has `size` bytes that can be written.
 */
enum fp_status fp_pager_stats(const struct fp_pager *pager,
                              struct fp_stats *stats,
                              size_t size);

/**
 * New memory of `bytes` bytes, all zero. *region: the new region, to be given to fp_region_free; NULL on failure.
 *
 * FP_ERR_NULL, FP_ERR_ZERO_SIZE, FP_ERR_TOO_LARGE, FP_ERR_FORKED, FP_ERR_OS (no memory, too many mappings).
 *
 * Requires: `pager` is NULL or a living pager; `region` is NULL or can be written.
 */
enum fp_status fp_region_new(const struct fp_pager *pager,
                             size_t bytes,
                             struct fp_region **region);

/**
 * Gives a region back: its content is lost. No thread may use its memory any more: one that does ends the process with
 * SIGSEGV or SIGBUS, as after munmap. The memory stays while parts of it are pinned. NULL: nothing happens.
 *
 * Requires: `region` is NULL or from `fp_region_new`, not freed before, and not in use by another call.
 */
void fp_region_free(struct fp_region *region);

/**
 * The region's first byte, at a page boundary; NULL for NULL. The memory can be read and written like any other,
 * except by system calls in FP_FAULT_SIGNAL, see fp_region_pin.
 *
 * Requires: `region` is NULL or a living region.
 */
void *fp_region_data(const struct fp_region *region);

/**
 * Bytes of the region; 0 for NULL.
 *
 * Requires: `region` is NULL or a living region.
 */
size_t fp_region_size(const struct fp_region *region);

/**
 * Advice (a fp_advice) on `len` bytes from `offset` on. Any thread.
 *
 * FP_ERR_NULL, FP_ERR_RANGE, FP_ERR_ADVICE, FP_ERR_FORKED, FP_ERR_UNREADABLE (FP_WILLNEED only).
 *
 * Requires: `region` is NULL or a living region.
 */
enum fp_status fp_region_advise(const struct fp_region *region, size_t offset, size_t len, int advice);

/**
 * Brings `len` bytes from `offset` on in, as far as the budget allows, before it returns. Any thread.
 *
 * FP_ERR_NULL, FP_ERR_RANGE, FP_ERR_FORKED, FP_ERR_UNREADABLE.
 *
 * Requires: `region` is NULL or a living region.
 */
enum fp_status fp_region_prefetch(const struct fp_region *region, size_t offset, size_t len);

/**
 * Makes `len` bytes from `offset` on resident, and keeps them so until fp_unpin. System calls work on pinned memory;
 * in FP_FAULT_SIGNAL they fail with EFAULT on memory that is not present, because the kernel cannot run the handler in
 * the middle of a call. *pin: to be given to fp_unpin; NULL on failure, and nothing is pinned then. Any thread.
 *
 * FP_ERR_NULL, FP_ERR_RANGE, FP_ERR_PIN_LIMIT, FP_ERR_FORKED, FP_ERR_UNREADABLE, FP_ERR_OS (the kernel does not make
 * it writable).
 *
 * Requires: `region` is NULL or a living region; `pin` is NULL or can be written.
 */
enum fp_status fp_region_pin(const struct fp_region *region,
                             size_t offset,
                             size_t len,
                             struct fp_pin **pin);

/**
 * Ends a pin. A region that was freed meanwhile goes with its last pin. NULL: nothing happens. Any thread.
 *
 * Requires: `pin` is NULL or from `fp_region_pin`, not ended before.
 */
void fp_unpin(struct fp_pin *pin);

/**
 * For programs that install a SIGBUS handler after the first pager was made, without system_calls of fp_config: serves
 * the fault, if it is one of a region; then the handler returns. false: it is not, and is the program's own. info and
 * context: the handler's own arguments (siginfo_t *, ucontext_t *; SA_SIGINFO). The handler must block all signals
 * whose handlers touch regions, and must not have SA_ONSTACK unless that stack has 64 KiB. Async-signal-safe.
 *
 * Requires: `info` and `context` are NULL or what the kernel gave to a SIGBUS handler that is running.
 */
bool fp_handle_sigbus(void *info,
                      void *context);

/**
 * Makes an allocator: blocks of `min_bytes` bytes and more become regions of `pager`. *allocator: the new one, to be
 * given to fp_allocator_free; NULL on failure.
 *
 * FP_ERR_NULL, FP_ERR_OS.
 *
 * Requires: `pager` is NULL or a living pager; `allocator` is NULL or can be written.
 */
enum fp_status fp_allocator_new(const struct fp_pager *pager,
                                size_t min_bytes,
                                struct fp_allocator **allocator);

/**
 * Ends an allocator: it makes no regions any more, all its later blocks are malloc's. Those that it has made stay
 * usable, and can be given to its functions for ever; the pager stays as long as there are any. NULL: nothing happens.
 *
 * Requires: `allocator` is NULL or from `fp_allocator_new`.
 */
void fp_allocator_free(struct fp_allocator *allocator);

/**
 * A block of `bytes` bytes; NULL if there is none: fp_last_error says why. Any thread.
 *
 * Requires: `context` is a fp_allocator.
 */
void *fp_malloc(void *context, size_t bytes);

/**
 * The same for `count` times `bytes` bytes, all zero.
 *
 * Requires: `context` is a fp_allocator.
 */
void *fp_calloc(void *context, size_t count, size_t bytes);

/**
 * A block of `bytes` bytes that begins with what `block` has, which is freed; NULL if there is none, and `block`
 * stays.
 *
 * Requires: `context` is a fp_allocator; `block` is NULL or one of its blocks, or of malloc.
 */
void *fp_realloc(void *context,
                 void *block,
                 size_t bytes);

/**
 * Gives a block back. NULL: nothing happens. The size is not looked at. The last blocks that were given back, up to a
 * sixteenth of the budget that the pager had when the allocator was made, are kept for later ones of the same size.
 *
 * Requires: `context` is a fp_allocator; `block` is NULL or one of its blocks, or of malloc, not freed before.
 */
void fp_free(void *context,
             void *block,
             size_t bytes);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FARPAGE_H */

/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Events folded into groups in the kernel, instead of one record per event.
 *
 * A fold is a group-by over intervals of time. Each processor has its own cells, one for each group, and
 * blocks of bins for histograms; both are found by their keys. An event for which there is no room, or
 * with an out-of-range value, becomes a record as if there were no fold. weir_model::fold defines the
 * contract.
 *
 * Concurrency:
 *  - A program marks its processor as busy, with a full barrier, before it reads which interval is open,
 *    and clears the mark after its last store. A program that finds the mark set has interrupted another
 *    one: it changes nothing and makes a record.
 *  - User space closes an interval, with a full barrier, and then waits until each processor was
 *    observed not to be busy. A program that becomes busy later finds the interval closed. So the cells
 *    of a closed interval do not change, and belong to user space until it frees their keys.
 *
 * The includer has declared, before this file:
 *  - `folding`, a constant in section .rodata.fold;
 *  - struct finished, an event, with `ts_ns`, `values`, `cpu` and `clauses` (those that it passes);
 *  - key_of(), which sets the words of a fold's key; bits 48 and above of the first one are reserved;
 *  - may_fold(), whether a fold applies to an event;
 *  - SUMS_MAY_OVERFLOW, 0 if no sum of an interval can exceed 64 bits;
 *  - MEASURE_MASK, which limits the index of a value to the memory of the event.
 */
#ifndef WEIR_GROUPS_BPF_H
#define WEIR_GROUPS_BPF_H

#include "ring.bpf.h"
#include "fold.h"

TABLE(fold_windows, sizeof(struct fold_window));
TABLE(fold_cpus, sizeof(struct fold_cpu));
TABLE(fold_cells, sizeof(struct fold_cell));
TABLE(fold_blocks, sizeof(struct fold_block));

/* ---- Cells and blocks ---------------------------------------------------------------------- */

/* The key in a processor's tables: words that no fold uses are not compared. */
static __always_inline bool same_key(const struct fold_cell *cell, const __u64 *key)
{
	__u64 apart = cell->key[0] ^ key[0];

	if (folding.keys & FOLD_BY_PID)
		apart |= cell->key[1] ^ key[1];
	if (folding.keys & FOLD_BY_CGROUP)
		apart |= cell->key[2] ^ key[2];
	if (folding.keys & FOLD_BY_COMM)
		apart |= (cell->key[3] ^ key[3]) | (cell->key[4] ^ key[4]);
	return !apart;
}

/* Odd constants without a pattern: the products are independent, so that they are computed in parallel. */
static __always_inline __u32 hash_key(const __u64 *key)
{
	__u64 mixed = key[0] * 0x9e3779b97f4a7c15ULL;

	if (folding.keys & FOLD_BY_PID)
		mixed ^= key[1] * 0xc2b2ae3d27d4eb4fULL;
	if (folding.keys & FOLD_BY_CGROUP)
		mixed ^= key[2] * 0x165667b19e3779f9ULL;
	if (folding.keys & FOLD_BY_COMM)
		mixed ^= key[3] * 0xd6e8feb86659fd93ULL ^ key[4] * 0xa0761d6478bd642fULL;
	return (mixed ^ mixed >> 29) * 0x9e3779b97f4a7c15ULL >> 40;
}

static __always_inline struct fold_cell *cell_at(__u32 cpu, __u32 hash)
{
	__u32 slot = cpu * folding.cells + (hash & (folding.cells - 1));

	return bpf_map_lookup_elem(&fold_cells, &slot);
}

/* Initialises a cell, as far as it is in use, and puts it at the head of its window's list. */
static __always_inline void take_cell(struct fold_cell *cell, const __u64 *key, __u32 slot,
				      __u64 *list)
{
	__u32 i;

	cell->key[1] = key[1];
	cell->key[2] = key[2];
	cell->key[3] = key[3];
	cell->key[4] = key[4];
	cell->rows = 0;
	cell->blocks = 0;
	cell->next = *list;
	cell->slot = slot;
#pragma unroll
	for (i = 0; i < FOLD_CALLS; i++)
		if (i < folding.moments) {
			cell->moments[i].count = 0;
			cell->moments[i].sum = 0;
			cell->moments[i].min = ~0ULL;
			cell->moments[i].max = 0;
		}
	cell->key[0] = key[0];
	publish(list, slot + 1);
}

/*
 * The cell of `key` on this processor, allocated if there is none; NULL if there is no room. If user
 * space has freed a cell before the one of the same key, a second one is allocated: the group then has
 * two cells, and both are reported.
 */
SUBPROGRAM struct fold_cell *search_cell(const __u64 *key, __u32 cpu, __u64 *list)
{
	__u32 home = hash_key(key), i;

#pragma unroll
	for (i = 0; i < FOLD_PROBES; i++) {
		struct fold_cell *cell = cell_at(cpu, home + i);

		if (!cell)
			return NULL;
		if (same_key(cell, key))
			return cell;
		if (!cell->key[0]) {
			take_cell(cell, key,
				  cpu * folding.cells + ((home + i) & (folding.cells - 1)), list);
			return cell;
		}
	}
	return NULL;
}

/* In nearly all cases the cell is at the first position. */
static __always_inline struct fold_cell *find_cell(const __u64 *key, __u32 cpu, __u64 *list)
{
	struct fold_cell *cell = cell_at(cpu, hash_key(key));

	if (cell && same_key(cell, key))
		return cell;
	return search_cell(key, cpu, list);
}

static __always_inline __u32 hash_block(__u64 key)
{
	return (key ^ key >> 29) * 0x9e3779b97f4a7c15ULL >> 40;
}

static __always_inline __u32 block_slot(__u32 cpu, __u32 hash)
{
	return cpu * folding.blocks + (hash & (folding.blocks - 1));
}

/* The position + 1 of the block of `key`, allocated if there is none; 0 if there is no room. */
SUBPROGRAM __u32 search_block(__u64 key, __u32 cpu, struct fold_cell *cell)
{
	__u32 home = hash_block(key), i, bin;

#pragma unroll
	for (i = 0; i < FOLD_PROBES; i++) {
		__u32 slot = block_slot(cpu, home + i);
		struct fold_block *block = bpf_map_lookup_elem(&fold_blocks, &slot);

		if (!block)
			return 0;
		if (block->key == key)
			return slot + 1;
		if (!block->key) {
#pragma unroll
			for (bin = 0; bin < FOLD_BINS; bin++) {
				block->bins[bin].count = 0;
				block->bins[bin].offsets = 0;
			}
			block->next = cell->blocks;
			block->key = key;
			cell->blocks = slot + 1;
			return slot + 1;
		}
	}
	return 0;
}

static __always_inline __u32 find_block(__u64 key, __u32 cpu, struct fold_cell *cell)
{
	__u32 slot = block_slot(cpu, hash_block(key));
	struct fold_block *block = bpf_map_lookup_elem(&fold_blocks, &slot);

	if (block && block->key == key)
		return slot + 1;
	return search_block(key, cpu, cell);
}

/* ---- Bins ---------------------------------------------------------------------------------- */

static __always_inline __u64 limit(__u32 at)
{
	return folding.limits[at & (FOLD_LIMITS - 1)];
}

/* The number of limits of a call below `value`, which is the number of its bin. */
SUBPROGRAM __u32 limits_below(const volatile struct fold_call *call, __u64 value)
{
	__u32 from = call->limits_from, below = 0, half;
	int log;

#pragma unroll
	for (log = FOLD_LIMITS_LOG - 1; log >= 0; log--)
		if (log < call->limits_log) {
			half = 1 << log;
			below += exceeds(value, limit(from + below + half - 1)) << log;
		}
	/* All but one at most so far. */
	return below + exceeds(value, limit(from + below));
}

/* The greatest power of two not above `value`, which is below 2^64 and not 0. */
static __always_inline __u32 log2_of(__u64 value)
{
	__u32 log = 0, more;

	more = exceeds(value, 0xffffffff) << 5;
	log += more;
	value >>= more;
	more = exceeds(value, 0xffff) << 4;
	log += more;
	value >>= more;
	more = exceeds(value, 0xff) << 3;
	log += more;
	value >>= more;
	more = exceeds(value, 0xf) << 2;
	log += more;
	value >>= more;
	more = exceeds(value, 3) << 1;
	log += more;
	value >>= more;
	return log + (value >> 1);
}

/* The position at which a value is counted: a bin, and the offset in it. */
struct place {
	__u32 bin;
	__u64 offset;
};

/* Bins are numbered as by weir_sketch::LogLinear; no value is so large that an offset loses bits. */
static __always_inline struct place log_linear_place(__u64 value)
{
	__u32 log = log2_of(value | (1 << FOLD_LOG_BITS)), shift = (log - FOLD_LOG_BITS) & 63;

	return (struct place){
		.bin = (shift << FOLD_LOG_BITS) + (value >> shift),
		.offset = value & ((1ULL << shift) - 1),
	};
}

/* ---- One event   --------------------------------------------------------------------------- */

/* A value without what is added to signed ones. */
static __always_inline __u64 unbiased(const volatile struct fold_call *call, __u64 value)
{
	return call->is_signed ? value - FOLD_BIAS : value;
}

/* Finds the bin that a value is to be added to; false if there is no room. */
static __always_inline bool find_bin(const volatile struct fold *fold, __u32 call, __u64 value,
				     __u32 cpu, struct fold_cell *cell, struct addition *found)
{
	struct place place = {};
	__u64 key, sign = 0;

	if (fold->calls[call].keep == KEEP_LIMITS) {
		place.bin = limits_below(&fold->calls[call], value);
	} else {
		/* Bins of negative values mirror the others. */
		value = unbiased(&fold->calls[call], value);
		sign = (__s64)value >> 63;
		place = log_linear_place((value ^ sign) - sign);
	}
	key = (__u64)(cell->slot + 1) << 32 | call << 24 | (sign & BLOCK_NEGATIVE) |
	      place.bin / FOLD_BINS;
	found->block = find_block(key, cpu, cell);
	found->bin = place.bin & (FOLD_BINS - 1);
	found->offset = place.offset;
	return found->block;
}

static __always_inline void add_to_bin(const struct addition *addition)
{
	__u32 slot = addition->block - 1;
	struct fold_block *block = bpf_map_lookup_elem(&fold_blocks, &slot);
	__u32 bin = addition->bin & (FOLD_BINS - 1);

	if (block) {
		block->bins[bin].count++;
		block->bins[bin].offsets += addition->offset;
	}
}

/* Whether the sum of one of the values would exceed 64 bits, of which signed ones need one. */
static __always_inline bool sums_overflow(const struct finished *f, const volatile struct fold *fold,
					  const struct fold_cell *cell)
{
	bool overflow = false;
	__u32 i;

#pragma unroll
	for (i = 0; i < FOLD_CALLS; i++)
		if (i < fold->call_count && fold->calls[i].keep == KEEP_MOMENTS) {
			const volatile struct fold_call *call = &fold->calls[i];
			__u64 value = f->values[call->measure & MEASURE_MASK];
			__u64 sum = cell->moments[call->place & (FOLD_CALLS - 1)].sum;
			__u64 more = unbiased(call, value), next = sum + more;

			if (value != UNKNOWN)
				overflow |= call->is_signed ? ((sum ^ next) & (more ^ next)) >> 63
							    : next < sum;
		}
	return overflow;
}

/* Adds an event to its group; false if it must become a record. */
static __always_inline bool fold_into(const struct finished *f, __u32 number, struct fold_cpu *own)
{
	const volatile struct fold *fold = &folding.folds[number & (FOLDS - 1)];
	struct fold_window *window = bpf_map_lookup_elem(&fold_windows, &number);
	struct fold_cell *cell;
	__u64 key[5] = {};
	__u32 i, open;

	if (!window)
		return false;
	/* An interval contains the times after its start, up to and including its end. */
	if (*(volatile __u64 *)&window->end_ns[0] - f->ts_ns < fold->interval_ns)
		open = 0;
	else if (*(volatile __u64 *)&window->end_ns[1] - f->ts_ns < fold->interval_ns)
		open = 1;
	else
		return false;
#pragma unroll
	for (i = 0; i < FOLD_CALLS; i++)
		if (i < fold->call_count) {
			__u64 value = f->values[fold->calls[i].measure & MEASURE_MASK];

			if (value != UNKNOWN && value >= FOLD_VALUE_MAX)
				return false;
		}
	key[0] = CELL_TAKEN | (__u64)number << CELL_FOLD_SHIFT | (__u64)open << CELL_WINDOW_SHIFT;
	key_of(f, number, key);
	cell = find_cell(key, f->cpu, &own->cells[number & (FOLDS - 1)][open]);
	if (!cell)
		return false;
	/* All bins are allocated before anything is added: an event is folded completely or not at all. */
#pragma unroll
	for (i = 0; i < FOLD_CALLS; i++)
		if (i < fold->call_count && fold->calls[i].keep != KEEP_MOMENTS) {
			__u64 value = f->values[fold->calls[i].measure & MEASURE_MASK];

			own->additions[i].block = 0;
			if (value != UNKNOWN &&
			    !find_bin(fold, i, value, f->cpu, cell, &own->additions[i]))
				return false;
		}
	if (SUMS_MAY_OVERFLOW && sums_overflow(f, fold, cell))
		return false;
	cell->rows++;
#pragma unroll
	for (i = 0; i < FOLD_CALLS; i++)
		if (i < fold->call_count) {
			__u64 value = f->values[fold->calls[i].measure & MEASURE_MASK];

			if (fold->calls[i].keep == KEEP_MOMENTS) {
				__u32 place = fold->calls[i].place & (FOLD_CALLS - 1);
				struct moments *m = &cell->moments[place];

				if (value == UNKNOWN)
					continue;
				m->count++;
				m->sum += unbiased(&fold->calls[i], value);
				if (value < m->min)
					m->min = value;
				if (value > m->max)
					m->max = value;
			} else if (own->additions[i].block) {
				add_to_bin(&own->additions[i]);
			}
		}
	return true;
}

/* The state of a processor, for fold_all(); NULL if this program has interrupted one that has it. */
static __always_inline struct fold_cpu *begin_fold(__u32 cpu)
{
	struct fold_cpu *own = bpf_map_lookup_elem(&fold_cpus, &cpu);

	return own && !__sync_lock_test_and_set(&own->busy, 1) ? own : NULL;
}

/* Folds an event for each demand that selected it; returns the folds that contain it, one bit each. */
SUBPROGRAM __u32 fold_all(const struct finished *f, struct fold_cpu *own)
{
	__u32 folded = 0, i;
	__u8 clauses = f->clauses;

#pragma unroll
	for (i = 0; i < FOLDS; i++) {
		const volatile struct fold *fold = &folding.folds[i];

		if (i >= folding.count || !(f->clauses & fold->clauses))
			continue;
		if (!may_fold(f, i))
			continue;
		if (fold_into(f, i, own)) {
			folded |= 1 << i;
			clauses &= ~fold->clauses;
		}
	}
	if (!clauses)
		own->unrecorded++;
	publish(&own->busy, 0);
	return folded;
}

#endif

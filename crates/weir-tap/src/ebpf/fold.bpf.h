/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Completed requests folded into groups: the properties of a request that groups.bpf.h requires.
 */
#ifndef WEIR_FOLD_BPF_H
#define WEIR_FOLD_BPF_H

#include "extents.bpf.h"
#include "request.bpf.h"
#include "fold.h"

const volatile struct folding folding SEC(".rodata.fold") = {};

/* The values of a completed request that a fold reads. */
struct finished {
	__u64 values[MEASURES];	/* first: for the verifier, a measure is below 16, the words of an event */
	__u64 ts_ns;
	__u64 cgroup;
	__u64 comm[2];
	__u32 device;
	__u32 pid;
	__u32 cpu;
	__u8 op;
	__u8 is_kernel;
	__u8 clauses;
	__u16 owners;
};

/* The key of the groups of a fold. */
static __always_inline void key_of(const struct finished *f, __u32 number, __u64 *key)
{
	const volatile struct fold *fold = &folding.folds[number & (FOLDS - 1)];

	if (fold->keys & FOLD_BY_DEVICE)
		key[0] |= f->device;
	if (fold->keys & FOLD_BY_OP)
		key[0] |= (__u64)f->op << CELL_OP_SHIFT;
	if (fold->keys & FOLD_BY_KERNEL && f->is_kernel)
		key[0] |= CELL_KERNEL;
	if (fold->keys & FOLD_BY_PID)
		key[1] = f->pid;
	if (fold->keys & FOLD_BY_OWNERS)
		key[1] |= (__u64)f->owners << CELL_OWNERS_SHIFT;
	if (fold->keys & FOLD_BY_CGROUP)
		key[2] = f->cgroup;
	if (fold->keys & FOLD_BY_COMM) {
		key[3] = f->comm[0];
		key[4] = f->comm[1];
	}
}

/* Where the owners of a request are not known here, user space determines them. */
static __always_inline bool may_fold(const struct finished *f, __u32 number)
{
	const volatile struct fold *fold = &folding.folds[number & (FOLDS - 1)];

	return !(fold->keys & FOLD_BY_OWNERS) || f->owners != OWNERS_UNKNOWN;
}

/*
 * Only sums of distances and of times since previous requests may, both with `flow` only; for the others,
 * see FOLD_VALUE_MAX in fold.h.
 */
#define SUMS_MAY_OVERFLOW config.flow

#define MEASURE_MASK 15
_Static_assert(sizeof(struct finished) == (MEASURE_MASK + 1) * 8, "struct finished");

#include "groups.bpf.h"

/* The distance from the previous request as a value; one that is too far becomes a record. */
static __always_inline __u64 seek_value(const struct io *io)
{
	__u64 value = io->seek + FOLD_BIAS;

	if (!config.flow || !io->in_flight || io->seek == NO_SEEK)
		return UNKNOWN;
	return value < FOLD_VALUE_MAX ? value : FOLD_VALUE_MAX;
}

/* Folds a completed request; false if no demand needs a record of it any more. */
static __always_inline bool fold(__u32 cpu, struct io *io, __u64 now)
{
	struct fold_cpu *own;
	struct finished *f;
	__u32 folded, i;

	/* Requests of unknown devices or with an unknown start become records: user space decides. */
	if (io->status || !io->index || io->flags & FLAG_ORPHAN)
		return true;
	own = begin_fold(cpu);
	if (!own)
		return true;
	_Static_assert(sizeof(*f) <= sizeof(own->event), "struct fold_cpu");
	f = (struct finished *)own->event;
	f->ts_ns = now;
	f->cgroup = io->cgroup;
	f->comm[0] = io->comm[0];
	f->comm[1] = io->comm[1];
	f->values[MEASURE_SECTORS] = io->bytes >> 9;
	f->values[MEASURE_BYTES] = io->bytes;
	f->values[MEASURE_WAIT] = io->wait_ns;
	f->values[MEASURE_SERVICE] = io->service_ns;
	f->values[MEASURE_LATENCY] = io->latency_ns;
	f->values[MEASURE_MERGES] = io->merges;
	f->values[MEASURE_IN_FLIGHT] = io->in_flight ? io->in_flight : UNKNOWN;
	f->values[MEASURE_SEEK] = seek_value(io);
	f->values[MEASURE_INTERARRIVAL] =
		config.flow && io->in_flight ? io->interarrival_ns : UNKNOWN;
	f->device = io->device;
	f->pid = io->pid;
	f->cpu = cpu;
	f->op = io->op;
	f->is_kernel = !!(io->flags & FLAG_KERNEL);
	f->clauses = io->clauses;
	f->owners = OWNERS_UNKNOWN;
	if (folding.keys & FOLD_BY_OWNERS)
		f->owners = owners_of(io->index, io->sector, io->bytes, process_of(io));
	folded = fold_all(f, own);
#pragma unroll
	for (i = 0; i < FOLDS; i++)
		if (folded >> i & 1) {
			io->flags |= folding.folds[i].flag;
			io->clauses &= ~folding.folds[i].clauses;
		}
	return io->clauses;
}

#endif

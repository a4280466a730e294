/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The tables of tap.bpf.c: requests in flight, devices, cgroups and counters.
 */
#ifndef WEIR_TABLE_BPF_H
#define WEIR_TABLE_BPF_H

#include "kernel.bpf.h"
#include "tap.h"

const volatile struct config config = {};

struct state state = {};

TABLE(records, sizeof(struct wide_record));
TABLE(buckets, sizeof(struct bucket));
TABLE(entries, sizeof(struct entry));
TABLE(devices, sizeof(struct known));
TABLE(cgroups, sizeof(struct known));
TABLE(counters, sizeof(struct counts));

#include "ring.bpf.h"

/*
 * A number that identifies `pointer`: its distance from one of our tables. The subtraction of two
 * pointers is the only arithmetic on them whose result the verifier accepts as a number, and it does
 * not disclose the address. */
static __always_inline __u64 name_of(void *pointer)
{
	__u64 name = (__u64)pointer;
	void *base = &state;

	asm volatile("%0 -= %1" : "+r"(name) : "r"(base));
	return name;
}

static __always_inline __u32 hash(__u64 key)
{
	return (key * 0x9e3779b97f4a7c15ULL) >> 40;
}

/* ---- Requests in flight -------------------------------------------------------------------- */

static __always_inline struct entry *entry_at(__u32 bucket, __u32 way)
{
	__u32 slot = bucket * WAYS + way;

	return bpf_map_lookup_elem(&entries, &slot);
}

static __always_inline struct entry *find(__u64 request)
{
	__u32 bucket = hash(request) & config.bucket_mask;
	struct bucket *b = bpf_map_lookup_elem(&buckets, &bucket);
	__u32 way;

	if (b)
#pragma unroll
		for (way = 0; way < WAYS; way++)
			if (b->request[way] == request)
				return entry_at(bucket, way);
	return NULL;
}

/* A free entry for `request`; NULL if its bucket is full. */
static __always_inline struct entry *claim(__u64 request)
{
	__u32 bucket = hash(request) & config.bucket_mask;
	struct bucket *b = bpf_map_lookup_elem(&buckets, &bucket);
	__u32 way;

	if (b)
#pragma unroll
		for (way = 0; way < WAYS; way++)
			if (!b->request[way] &&
			    __sync_val_compare_and_swap(&b->request[way], 0, request) == 0) {
				struct entry *e = entry_at(bucket, way);

				/* Release reads it back, so that the verifier does not check each way separately. */
				if (e)
					e->way = way;
				return e;
			}
	return NULL;
}

static __always_inline void release(__u64 request, struct entry *e)
{
	__u32 bucket = hash(request) & config.bucket_mask;
	struct bucket *b = bpf_map_lookup_elem(&buckets, &bucket);
	__u32 way = e->way & (WAYS - 1);

	if (!b)
		return;
	if (!config.track && e->odd)
		__sync_fetch_and_add(&state.odd, -1);
	/* User space may look at the entry again before the next request is written to it. */
	e->subject = 0;
	if (config.flow)
		e->in_flight = 0;
	barrier();
	if (config.ordered)
		*(volatile __u64 *)&b->request[way] = 0;
	else
		__sync_lock_test_and_set(&b->request[way], 0);
}

/* ---- Devices and cgroups ------------------------------------------------------------------- */

struct marks {
	__u32 index;
	__u32 bits;
};

#define MARKS_ALL 0xff
#define MARK_WANTED 1

static __always_inline struct marks marks_in(void *table, __u32 mask, __u64 key)
{
	__u32 at = hash(key) & mask;
	struct known *known = bpf_map_lookup_elem(table, &at);
	__u32 i;

	if (known)
#pragma unroll
		for (i = 0; i < SIBLINGS; i++)
			if (known->key[i] == key)
				return (struct marks){ known->index[i], known->marks[i] };
	return (struct marks){ 0, MARKS_ALL };
}

static __always_inline struct marks device_marks(__u32 device)
{
	return marks_in(&devices, config.device_mask, (__u64)device + 1);
}

/* ---- Counters ------------------------------------------------------------------------------ */

static __always_inline struct counts *counts_of(__u32 cpu, __u32 index)
{
	__u32 row = cpu * config.device_rows + index;

	return bpf_map_lookup_elem(&counters, &row);
}

#define COUNT_MORE(cpu, index, field, more)                                                        \
	do {                                                                                       \
		struct counts *counts_ = counts_of(cpu, index);                                    \
		if (counts_)                                                                       \
			counts_->field += more;                                                    \
	} while (0)

#define COUNT(cpu, index, field) COUNT_MORE(cpu, index, field, 1)

#endif

/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Rings: one per processor, of records that begin with a mark. The includer has declared `config`, with
 * `ring_slots` and `ordered`, and the table `records`.
 */
#ifndef WEIR_RING_BPF_H
#define WEIR_RING_BPF_H

#include "base.bpf.h"
#include "ring.h"

TABLE(rings, sizeof(struct ring));

/* Makes a word visible after all earlier stores. */
static __always_inline void publish(__u64 *word, __u64 value)
{
	barrier();
	if (config.ordered)
		*(volatile __u64 *)word = value;
	else
		__sync_lock_test_and_set(word, value);
}

/* Maximum number of programs that interrupt each other between the test of a ring and the reservation. */
#define NESTED_MAX 16

/* A slot of this processor's ring if fewer than `room` are in use, and its position. */
static __always_inline void *reserve(__u32 cpu, __u64 *position, __u32 room)
{
	struct ring *ring = bpf_map_lookup_elem(&rings, &cpu);
	__u32 slot;

	if (!ring)
		return NULL;
	if (unlikely(ring->head - ring->tail >= room))
		return NULL;
	*position = __sync_fetch_and_add(&ring->head, 1);
	slot = cpu * config.ring_slots + (*position & (config.ring_slots - 1));
	return bpf_map_lookup_elem(&records, &slot);
}

/* The record at a position is complete. */
static __always_inline void commit(__u64 *mark, __u64 position)
{
	publish(mark, position + 1);
}

#endif

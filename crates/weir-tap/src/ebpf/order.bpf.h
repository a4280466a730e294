/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Order of events over all processors: one compare-and-swap of `order.word` assigns an event its time,
 * its position, and the number of requests in flight. A time that is not later than that of the previous
 * event is set to the next nanosecond after it, and the record of the event has the same time. So what is
 * computed here equals what is computed from the records in timestamp order.
 */
#ifndef WEIR_ORDER_BPF_H
#define WEIR_ORDER_BPF_H

#include "base.bpf.h"
#include "order.h"

/* Attempts to get a position in an order. */
#define TRIES 5

#define PAST_MASK ((1ULL << PAST_BITS) - 1)
#define ONE_IN_FLIGHT (1ULL << PAST_BITS)

/*
 * The time of an event after the last one in `word`: `now`, or the nanosecond after the last event.
 * Without branches, because the verifier follows each of them in each attempt.
 */
static __always_inline __u64 time_after(__u64 word, __u64 last_ns, __u64 now)
{
	__u64 mask = (1ULL << TS_BITS) - 1;
	__u64 ahead = ((word >> (PAST_BITS + FLIGHT_BITS)) - now) & mask;
	__u64 is_ahead = (ahead >> (TS_BITS - 1)) - 1;
	/* Only the low bits of the time are kept; after a long idle time they are ambiguous. */
	__u64 is_old = ((__s64)(mask >> 2) - (__s64)(now - last_ns)) >> 63;

	return now + ((ahead + 1) & is_ahead & ~is_old);
}

static __always_inline __u64 word_of(__u64 ts_ns, __u64 low_bits)
{
	return ts_ns << (PAST_BITS + FLIGHT_BITS) |
	       (low_bits & ((1ULL << (PAST_BITS + FLIGHT_BITS)) - 1));
}

static __always_inline __u64 depth_in(__u64 word)
{
	return word >> PAST_BITS & DEPTH_MAX;
}

/* The index of the history that processor `cpu` may write: one of its two, but not the current one. */
static __always_inline __u64 free_past(__u64 word, __u32 cpu)
{
	__u64 own = cpu * 2;

	return own + ((word & PAST_MASK) == own);
}

/*
 * Puts an issue at `ts_ns` in its position, with `past` as the history before the next one; false if
 * another event was put there since `word` was read.
 */
static __always_inline bool put(struct order *o, __u64 word, __u64 ts_ns, __u64 past)
{
	__u64 next = word_of(ts_ns, (depth_in(word) + 1) << PAST_BITS | past);

	if (__sync_val_compare_and_swap(&o->word, word, next) != word)
		return false;
	o->last_ns = ts_ns;
	return true;
}

/* Removes a request whose completion was not seen. */
static __always_inline void drop(struct order *o)
{
	__u64 word;
	__u32 try;

	for (try = 0; try < TRIES; try++) {
		word = *(volatile __u64 *)&o->word;
		if (!depth_in(word) ||
		    __sync_val_compare_and_swap(&o->word, word, word - ONE_IN_FLIGHT) == word)
			return;
	}
	__sync_fetch_and_add(&o->word, -ONE_IN_FLIGHT);
}

/* Removes a request from those in flight; returns the time of its completion in the order. */
static __always_inline __u64 leave(struct order *o, __u64 now)
{
	__u64 word, ts_ns;
	__u32 try;

	for (try = 0; try < TRIES; try++) {
		word = *(volatile __u64 *)&o->word;
		if (!depth_in(word))
			return now;
		ts_ns = time_after(word, o->last_ns, now);
		if (__sync_val_compare_and_swap(&o->word, word,
						word_of(ts_ns, word - ONE_IN_FLIGHT)) == word) {
			o->last_ns = ts_ns;
			return ts_ns;
		}
	}
	__sync_fetch_and_add(&o->word, -ONE_IN_FLIGHT);
	return now;
}

#endif

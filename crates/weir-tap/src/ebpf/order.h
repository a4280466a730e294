/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The order of the events of a disk, or of a subject of histograms, over all processors.
 */
#ifndef WEIR_ORDER_H
#define WEIR_ORDER_H

/*
 * `word` has the time of the last event, the number of requests in flight after it, and the index of the
 * history before the next issue. An issuer writes its own copy of the history, and makes `word` refer to
 * that: a history does not change while `word` refers to it.
 */
struct order {
	__u64 word;
	__u64 last_ns;		/* approximate time of the last event, 64 bits */
};

/* Bits of `word`, from the lowest. */
#define PAST_BITS 12
#define FLIGHT_BITS 16
#define TS_BITS 36

#define DEPTH_MAX 0xffffULL

#endif

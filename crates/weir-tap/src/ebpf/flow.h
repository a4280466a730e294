/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * What flow.bpf.h and the reader in flow.rs share. Both sides assert the sizes.
 */
#ifndef WEIR_FLOW_H
#define WEIR_FLOW_H

#include "order.h"

/* State of a disk, in one cache line; its number is its row in the counters. */
struct flow {
	struct order order;
	__u64 spare[6];
};
_Static_assert(sizeof(struct flow) == 64, "struct flow");

/* The history before the next issue, two per disk and processor, each in its own cache line. */
struct flow_past {
	__u64 next;		/* the sector after the last request; 0: none */
	__u64 issue_ns;		/* the time of the last request; 0: none */
	__u64 spare[6];
};
_Static_assert(sizeof(struct flow_past) == 64, "struct flow_past");

/* No previous request, or no sector. */
#define NO_SEEK (1LL << 63)

#endif

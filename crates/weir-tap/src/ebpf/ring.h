/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* Definitions that kernel programs and the reader in rings.rs share. */
#ifndef WEIR_RING_H
#define WEIR_RING_H

/* One processor's ring: the number of records written and, in another cache line, read. */
struct ring {
	__u64 head;
	__u64 head_line[7];
	__u64 tail;
	__u64 tail_line[7];
};
_Static_assert(sizeof(struct ring) == 128, "struct ring");

#endif

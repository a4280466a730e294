/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Definitions that the programs of a kernel stream (stream.bpf.h) and the reader in stream/layout.rs
 * share. Both sides assert the sizes.
 */
#ifndef WEIR_STREAM_H
#define WEIR_STREAM_H

#include "fold.h"

/* The head of an event, which emit() fills in. The fields of the stream follow. */
struct event {
	__u64 mark;		/* position in the ring's history + 1, once the record is complete */
	__u64 ts_ns;		/* CLOCK_MONOTONIC; may be set before emit() */
	__u16 cpu;		/* processor */
	__u8 clauses;		/* that it passes, one bit each */
	__u8 folded;		/* folds that contain it, one bit each */
	__u32 spare;
};
_Static_assert(sizeof(struct event) == 24, "struct event");

/* Greatest size of an event with its fields, in bytes; a program may set it to at most 208. */
#ifndef EVENT_BYTES_MAX
#define EVENT_BYTES_MAX 128
#endif

/* The position of a number in an event. */
struct slot {
	__u16 offset;
	__u8 bytes;		/* 1, 2, 4 or 8 */
	__u8 is_signed;
	__u8 nullable;		/* the value `null` means NULL */
	__u8 spare[3];
	__u64 null;
};
_Static_assert(sizeof(struct slot) == 16, "struct slot");

enum test {
	TEST_RANGE = 0,		/* between the first two values, inclusive */
	TEST_SAMPLE = 1,	/* spread() of the number is between the first two */
	TEST_NUMBERS = 2,	/* one of the values */
	TEST_TEXTS = 3,		/* a text of 16 bytes, padded with zeros: one of the pairs of values */
};

#define TEXTS 8
#define TESTS 4
#define CLAUSES 8

struct test_of {
	struct slot slot;
	__u64 values[2 * TEXTS];
	__u8 kind;
	__u8 count;		/* of numbers or texts */
	__u8 spare[6];
};
_Static_assert(sizeof(struct test_of) == 152, "struct test_of");

/* The tests of a clause: all must pass. */
struct clause {
	struct test_of tests[TESTS];
	__u8 count;
	__u8 spare[7];
};
_Static_assert(sizeof(struct clause) == 616, "struct clause");

/* Values of an event that folds keep, a power of two, and words of a group's key that a stream sets. */
#define STREAM_MEASURES 8
#define KEY_WORDS 4

/* Fixed before the programs are loaded, so that the verifier removes what is not in use. */
struct stream_config {
	struct clause clauses[CLAUSES];
	struct slot measures[STREAM_MEASURES];	/* the values that folds keep */
	struct slot keys[FOLDS][KEY_WORDS];
	__u32 clause_count;
	__u32 ring_slots;	/* records per processor, a power of two */
	__u8 measure_count;
	__u8 key_words[FOLDS];
	__u8 ordered;		/* plain stores become visible in order (x86) */
	__u8 unified;		/* tasks and bios are in the same hierarchy of cgroups */
	__u8 spare[3];
	__u64 columns;		/* those that a demand reads, one bit each */
};
_Static_assert(sizeof(struct stream_config) == 8 * 616 + 8 * 16 + 2 * 64 + 24, "struct stream_config");

/* What one processor counts. */
struct stream_counts {
	__u64 ring_full;	/* events lost after they passed a clause */
	__u64 throttled;	/* not tested, since there were too many in the second */
	__u64 second;		/* the second of `hits` */
	__u64 hits;		/* events in this second */
	__u64 spare[4];
	__u64 other[8];		/* the stream's own counters */
};
_Static_assert(sizeof(struct stream_counts) == 128, "struct stream_counts");

/* State that changes while the programs run: their `.bss`. */
struct stream_state {
	__u64 live;		/* set once all programs are attached, to the number of times that they
				 * have been; 0: they are not, and no event is emitted */
	__u64 zero;		/* always 0, but unknown to the verifier */
};
_Static_assert(sizeof(struct stream_state) == 16, "struct stream_state");

#endif

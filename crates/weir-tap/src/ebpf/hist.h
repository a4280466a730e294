/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * What hist.bpf.h and the reader in hist/layout.rs share: the histograms that the kernel keeps. Both
 * sides assert the sizes.
 *
 * A distribution is a head (sum, least, greatest) and bins. A bin is a bin of weir_sketch::LogBins,
 * cut where one of vscsiStats' limits falls into it: its number is that of the log bin plus how many
 * limits lie below the value. So one count serves both, and both can be had from it.
 */
#ifndef WEIR_HIST_H
#define WEIR_HIST_H

#include "tap.h"

/* Values beyond these are counted in the outermost log bin; sum, least and greatest know them. */
#define TIME_NS_MAX ((1ULL << 40) - 1)		/* 18 minutes */
#define SEEK_SECTORS_MAX ((1ULL << 36) - 1)	/* 32 TiB */
#define DEPTH_MAX 0xffffULL

/* Log bins below the greatest value, and one. */
#define TIME_LOG_BINS 592
#define SEEK_LOG_BINS 1055		/* those of negative distances, mirrored, before the others */
#define LENGTH_LOG_BINS 464
#define DEPTH_LOG_BINS 208

/* The same, cut by the limits. */
#define TIME_BINS (TIME_LOG_BINS + 10)
#define SEEK_BINS (SEEK_LOG_BINS + 33)
#define LENGTH_BINS (LENGTH_LOG_BINS + 17)
#define DEPTH_BINS (DEPTH_LOG_BINS + 12)

/* Lengths and depths below these have their bins in a table. */
#define SHORT_SECTORS 1024
#define SHALLOW 256

/* Sum, wrapping; and, so that 0 is the beginning of both, `~key` of the least and `key` of the greatest
 * value, where `key` is the value with its sign bit turned. */
struct head {
	__u64 sum;
	__u64 least;
	__u64 greatest;
};

/* What one processor saw of one operation of one subject. */
struct of_op {
	struct head length;
	struct head seek;
	struct head interarrival;
	struct head depth;
	struct head service;
	struct head wait;
	struct head latency;
	__u64 length_bins[LENGTH_BINS];
	__u64 seek_bins[SEEK_BINS];
	__u64 interarrival_bins[TIME_BINS];
	__u64 depth_bins[DEPTH_BINS];
	__u64 service_bins[TIME_BINS];
	__u64 wait_bins[TIME_BINS];
	__u64 latency_bins[TIME_BINS];
};
_Static_assert(sizeof(struct of_op) == 33744, "struct of_op");

/* What it saw of all operations, beyond their sums. */
struct of_all {
	struct head seek;
	struct head closest;
	struct head interarrival;
	__u64 seek_bins[SEEK_BINS];
	__u64 closest_bins[SEEK_BINS];
	__u64 interarrival_bins[TIME_BINS];
};

/* Memory is given out in pieces that hold either. */
union block {
	struct of_op op;
	struct of_all all;
};
_Static_assert(sizeof(union block) == 33744, "union block");

/* Where a processor's blocks of a subject are, by operation and last of all; 0 is none yet. */
#define HIST_OPS 5
#define OF_ALL HIST_OPS
struct blocks_of {
	__u32 block[8];
};
_Static_assert(sizeof(struct blocks_of) == 32, "struct blocks_of");

/*
 * One line for one subject. `order` puts its events in order: the time of the last one, how many are in
 * flight after it, and which `struct past` has what was before the next issue.
 */
struct subject {
	__u64 order;
	__u64 last_ns;		/* nearly the time of the last event, all bits of it */
	__u64 who;		/* owner, process or cgroup; 0 is none */
	__u32 device;
	__u32 spare;
	__u64 unused[4];
};
_Static_assert(sizeof(struct subject) == 64, "struct subject");

/* Bits of `order`, from the lowest. */
#define PAST_BITS 12
#define FLIGHT_BITS 16
#define TS_BITS 36

/*
 * What was before the next issue of a subject. It never changes while `order` points at it: who issues
 * writes one of its own and makes `order` point at that.
 */
#define ENDS_MAX 32
#define AT_ONCE 16
#define NO_SECTOR (1ULL << 50)
struct past {
	__u64 ts_ns;			/* 0 is none */
	__u64 ts_of_op_ns[8];
	__u64 end_of_op[8];		/* last sector; NO_SECTOR is none */
	__u64 ends[ENDS_MAX + AT_ONCE];	/* those of the last requests, the latest first */
	__u64 spare[7];
};
_Static_assert(sizeof(struct past) == 576, "struct past");

/* Subjects whose names hash alike: the upper bits of the hash and, in the lower ones, number + 1. */
#define NUMBER_BITS 16
struct subject_bucket {
	__u64 name[WAYS];
};

/* What was not entered, as one processor saw it. */
struct not_entered {
	__u64 subjects_full;	/* requests of a subject beyond the bound */
	__u64 blocks_full;	/* requests that found no memory for their bins */
	__u64 contended;	/* requests that found no place in the order of a very busy subject */
	__u64 table_full;	/* requests whose end could not have been told */
	__u64 ends_blocks_full;	/* ends that found no memory for their bins */
	__u64 spare[3];
};
_Static_assert(sizeof(struct not_entered) == 64, "struct not_entered");

/* What changes while the programs run. */
struct hist_state {
	__u64 subjects;		/* given out, and more where that was tried in vain */
	__u64 blocks;		/* likewise; the first is never given out */
	__u64 spare[6];
};
_Static_assert(sizeof(struct hist_state) == 64, "struct hist_state");

/* What tells subjects apart, beside the device. */
enum by {
	BY_DEVICE = 0,
	BY_OWNER = 1,
	BY_PROCESS = 2,
	BY_CGROUP = 3,
};

/* Keys of the table of owners. */
#define OWNS_PROCESS (1ULL << 62)
#define OWNS_CGROUP (2ULL << 62)
#define OWNS_DEVICE (3ULL << 62)

/*
 * Fixed before the programs are loaded. For each log bin: in the lower 12 bits the number of its first
 * bin, above them the limit that cuts it, or one that it does not reach.
 */
struct hist_config {
	__u64 time_cuts[TIME_LOG_BINS];
	__u64 seek_cuts[SEEK_LOG_BINS];
	__u64 length_cuts[LENGTH_LOG_BINS];
	__u64 depth_cuts[DEPTH_LOG_BINS];
	__u16 short_bins[SHORT_SECTORS];	/* bins of lengths */
	__u16 shallow_bins[SHALLOW];		/* bins of depths */
	__u32 bucket_mask;
	__u32 owner_mask;
	__u32 processors;
	__u32 subjects_max;
	__u32 blocks_max;
	__u32 closest_of;
	__u8 log2[256];		/* whole part */
	__u8 small[256];	/* the same less 4, at least 0 */
	__u8 on;
	__u8 by;
	__u8 waits;
	__u8 clauses;		/* those that stand for the histograms */
	__u8 spare[4];
};
_Static_assert(sizeof(struct hist_config) == 21656, "struct hist_config");

#endif

/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * What hist.bpf.h and the reader in hist/layout.rs share: the histograms that the kernel keeps. Both
 * sides assert the sizes.
 *
 * A distribution is a head (sum, least, greatest) and bins. A bin is a bin of weir_sketch::LogBins,
 * split where one of vscsiStats' limits lies in it: its number is that of the log bin plus the number of
 * limits below the value. So one count serves both kinds of bins, and both can be derived from it.
 */
#ifndef WEIR_HIST_H
#define WEIR_HIST_H

#include "order.h"
#include "tap.h"

/* Values beyond these are counted in the outermost log bin; sum, least and greatest include them. */
#define TIME_NS_MAX ((1ULL << 40) - 1)		/* 18 minutes */
#define SEEK_SECTORS_MAX ((1ULL << 36) - 1)	/* 32 TiB */

/* Log bins below the greatest value, and one. */
#define TIME_LOG_BINS 592
#define SEEK_LOG_BINS 1055		/* those of negative distances, mirrored, before the others */
#define LENGTH_LOG_BINS 464
#define DEPTH_LOG_BINS 208

/* The same, split by the limits. */
#define TIME_BINS (TIME_LOG_BINS + 10)
#define SEEK_BINS (SEEK_LOG_BINS + 33)
#define LENGTH_BINS (LENGTH_LOG_BINS + 17)
#define DEPTH_BINS (DEPTH_LOG_BINS + 12)

/* Lengths and depths below these have their bins in a table. */
#define SHORT_SECTORS 1024
#define SHALLOW 256

/* Sum, wrapping; `~key` of the least and `key` of the greatest value, so that both start at 0, where
 * `key` is the value with its sign bit inverted. */
struct head {
	__u64 sum;
	__u64 least;
	__u64 greatest;
};

/* The counts of one operation of one subject on one processor. */
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

/* The counts of all operations, beyond their sums. */
struct of_all {
	struct head seek;
	struct head closest;
	struct head interarrival;
	__u64 seek_bins[SEEK_BINS];
	__u64 closest_bins[SEEK_BINS];
	__u64 interarrival_bins[TIME_BINS];
};

/* Memory is allocated in pieces that can contain either. */
union block {
	struct of_op op;
	struct of_all all;
};
_Static_assert(sizeof(union block) == 33744, "union block");

/* The blocks of a subject on one processor, by operation, the last for all; 0: none yet. */
#define HIST_OPS 5
#define OF_ALL HIST_OPS
struct blocks_of {
	__u32 block[8];
};
_Static_assert(sizeof(struct blocks_of) == 32, "struct blocks_of");

/* State of a subject, in one cache line. */
struct subject {
	struct order order;	/* its history is a `struct past` */
	__u64 who;		/* owner, process or cgroup; 0: none */
	__u32 device;
	__u32 spare;
	__u64 unused[4];
};
_Static_assert(sizeof(struct subject) == 64, "struct subject");

/* The history before the next issue of a subject. */
#define ENDS_MAX 32
#define AT_ONCE 16
#define NO_SECTOR (1ULL << 50)
struct past {
	__u64 ts_ns;			/* 0 is none */
	__u64 ts_of_op_ns[8];
	__u64 end_of_op[8];		/* last sector; NO_SECTOR: none */
	__u64 ends[ENDS_MAX + AT_ONCE];	/* last sectors of the last requests, latest first */
	__u64 spare[7];
};
_Static_assert(sizeof(struct past) == 576, "struct past");

/* Subjects with equal hashes: the upper bits of the hash and, in the lower ones, number + 1. */
#define NUMBER_BITS 16
struct subject_bucket {
	__u64 name[WAYS];
};

/* Requests that were not entered, per processor. */
struct not_entered {
	__u64 subjects_full;	/* requests of subjects beyond the maximum */
	__u64 blocks_full;	/* requests without memory for their bins */
	__u64 contended;	/* requests without a position, as their subject was too busy */
	__u64 table_full;	/* requests without an entry for their completion */
	__u64 ends_blocks_full;	/* completions without memory for their bins */
	__u64 spare[3];
};
_Static_assert(sizeof(struct not_entered) == 64, "struct not_entered");

/* Values that change while the programs run. */
struct hist_state {
	__u64 subjects;		/* allocated, including failed attempts */
	__u64 blocks;		/* likewise; the first is never allocated */
	__u64 spare[6];
};
_Static_assert(sizeof(struct hist_state) == 64, "struct hist_state");

/* What distinguishes subjects, in addition to the device. */
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
 * bin, in the upper bits the limit that splits it, or a limit that no value of it reaches.
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
	__u8 clauses;		/* the clauses of the histograms */
	__u8 spare[4];
};
_Static_assert(sizeof(struct hist_config) == 21656, "struct hist_config");

#endif

/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * What the folds of fold.bpf.h and the reader in fold/layout.rs share. Both sides assert the sizes.
 */
#ifndef WEIR_FOLD_H
#define WEIR_FOLD_H

#define FOLDS 2			/* group-bys at a time */
#define FOLD_CALLS 16		/* values kept for each group */
#define FOLD_LIMITS_LOG 9	/* log2 of the limits of one histogram at most */
#define FOLD_LIMITS 1024	/* limits of all histograms */
#define FOLD_LOG_BITS 7		/* log2 of the bins per power of two */
#define FOLD_BINS 16		/* bins of a block */
#define FOLD_PROBES 8		/* positions at which a cell or a block may be */

/*
 * Greater values (about 18 minutes, or a terabyte) become records, so that a sum cannot overflow. A
 * request with a time has had an entry for that time, and there are at most 2^23 entries: the times of
 * all requests that complete in the longest interval, 10 minutes, add up to less than
 * 2^23 * (10 minutes + 2^40 ns), below 2^64. Lengths are below 2^32, and so are offsets in a bin, whose
 * sum 2^32 requests do not overflow. */
#define FOLD_VALUE_MAX (1ULL << 40)

/* Signed values are stored with this added. */
#define FOLD_BIAS (FOLD_VALUE_MAX / 2)

/* The parts of the key of a fold's groups, one bit each. */
enum fold_key {
	FOLD_BY_OP = 1,
	FOLD_BY_DEVICE = 2,
	FOLD_BY_PID = 4,
	FOLD_BY_COMM = 8,
	FOLD_BY_CGROUP = 16,
	FOLD_BY_KERNEL = 32,	/* whether a kernel thread submitted it */
	FOLD_BY_OWNERS = 64,	/* the virtual disks at its sectors, with FOLD_BY_PID */
};

/* The values that are aggregated. */
enum measure {
	MEASURE_SECTORS = 0,
	MEASURE_BYTES = 1,
	MEASURE_WAIT = 2,
	MEASURE_SERVICE = 3,
	MEASURE_LATENCY = 4,
	MEASURE_MERGES = 5,
	MEASURE_IN_FLIGHT = 6,
	MEASURE_SEEK = 7,
	MEASURE_INTERARRIVAL = 8,
	MEASURES = 9,
};

/* The aggregates. */
enum keep {
	KEEP_MOMENTS = 0,
	KEEP_LIMITS = 1,
	KEEP_LOG_LINEAR = 2,
};

struct fold_call {
	__u8 measure;
	__u8 keep;
	__u8 place;		/* moments: index in the cell */
	__u8 is_signed;		/* the value has FOLD_BIAS added */
	__u8 limits_log;	/* log2 of the number of limits */
	__u8 spare;
	__u16 limits_from;	/* position of the first one */
};
_Static_assert(sizeof(struct fold_call) == 8, "struct fold_call");

struct fold {
	__u64 interval_ns;
	__u32 keys;
	__u8 clauses;		/* of the demand, one bit each */
	__u8 call_count;
	__u8 flag;		/* set in a record that was folded */
	__u8 spare;
	struct fold_call calls[FOLD_CALLS];
};
_Static_assert(sizeof(struct fold) == 144, "struct fold");

/* Fixed before the programs are loaded, like struct config. */
struct folding {
	struct fold folds[FOLDS];
	__u32 count;
	__u32 cells;		/* per processor, a power of two */
	__u32 blocks;		/* likewise */
	__u32 moments;		/* in each cell */
	__u32 keys;		/* union of the keys of all folds */
	__u32 spare;
	__u64 limits[FOLD_LIMITS];	/* ascending in each histogram, filled with the maximum */
};
_Static_assert(sizeof(struct folding) == 2 * 144 + 24 + 8192, "struct folding");

/* The ends of the open intervals, on the monotonic clock; 0: none. */
struct fold_window {
	__u64 end_ns[2];
};
_Static_assert(sizeof(struct fold_window) == 16, "struct fold_window");

/* What a call of a fold changes, once all its memory is allocated. */
struct addition {
	__u32 block;		/* + 1; 0: nothing */
	__u32 bin;
	__u64 offset;
};

/*
 * State of a processor: the last cell allocated for each fold and window, + 1; cells form a list. The
 * rest belongs to the program that has set `busy`. It is here because programs have little stack, and
 * because the verifier does not distinguish paths by what is in a table.
 */
struct fold_cpu {
	__u64 busy;
	__u64 unrecorded;	/* requests folded without a record */
	__u64 spare[2];
	__u64 cells[FOLDS][2];
	__u64 event[16];	/* the includer's struct finished */
	struct addition additions[FOLD_CALLS];
};
_Static_assert(sizeof(struct fold_cpu) == 448, "struct fold_cpu");

struct moments {
	__u64 count;
	__u64 sum;
	__u64 min;
	__u64 max;
};

/* The contents of key[0] of a cell. */
#define CELL_OP_SHIFT 32
#define CELL_KERNEL (1ULL << 40)
#define CELL_FOLD_SHIFT 48
#define CELL_WINDOW_SHIFT 56
#define CELL_TAKEN (1ULL << 63)

/* The position of the owners in key[1], above the process. */
#define CELL_OWNERS_SHIFT 32

/* A group. As many moments follow as the folds keep. */
struct fold_cell {
	__u64 key[5];		/* 0 is free; owners and pid; cgroup; command name */
	__u64 rows;
	__u32 next;
	__u32 blocks;		/* the last block allocated, + 1 */
	__u32 slot;		/* own index: without it the verifier would check each way separately */
	__u32 spare;
	struct moments moments[FOLD_CALLS];
};
_Static_assert(sizeof(struct fold_cell) == 64 + 16 * 32, "struct fold_cell");

/* Set in the key of a block for the bins of negative values. */
#define BLOCK_NEGATIVE (1ULL << 23)

struct fold_bin {
	__u64 count;
	__u64 offsets;		/* sum of the offsets of its values in the bin */
};

/* Some bins of a group. */
struct fold_block {
	__u64 key;		/* cell + 1, call, sign, number among the blocks of the call; 0 is free */
	__u64 next;
	struct fold_bin bins[FOLD_BINS];
};
_Static_assert(sizeof(struct fold_block) == 272, "struct fold_block");

#endif

/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * What the folds of fold.bpf.h and the reader in fold/layout.rs share. Both sides assert the sizes.
 */
#ifndef WEIR_FOLD_H
#define WEIR_FOLD_H

#define FOLDS 2			/* group-bys at a time */
#define FOLD_CALLS 8		/* things kept of each group */
#define FOLD_LIMITS 64		/* limits of one histogram */
#define FOLD_LOG_BITS 7		/* bins to a power of two, as a power of two */
#define FOLD_BINS 16		/* bins of a block */
#define FOLD_PROBES 8		/* places where a cell or a block may be */

/*
 * Greater values, some 18 minutes or a terabyte, become records. So a sum cannot overflow. A request that
 * has a time has an entry for as long, of which there are 2^23 at most: the times of all that end in an
 * interval of 10 minutes, the longest there is, add up to less than 2^23 * (10 minutes + 2^40 ns), below
 * 2^64. Lengths are below 2^32, and so are offsets in a bin, which 2^32 requests do not overflow.
 */
#define FOLD_VALUE_MAX (1ULL << 40)

/* What tells the groups of a fold apart, a bit each. */
enum fold_key {
	FOLD_BY_OP = 1,
	FOLD_BY_DEVICE = 2,
	FOLD_BY_PID = 4,
	FOLD_BY_COMM = 8,
	FOLD_BY_CGROUP = 16,
	FOLD_BY_KERNEL = 32,	/* whether a kernel thread submitted it */
};

/* What something is kept of. */
enum measure {
	MEASURE_SECTORS = 0,
	MEASURE_BYTES = 1,
	MEASURE_WAIT = 2,
	MEASURE_SERVICE = 3,
	MEASURE_LATENCY = 4,
	MEASURES = 8,
};

/* What is kept of it. */
enum keep {
	KEEP_MOMENTS = 0,
	KEEP_LIMITS = 1,
	KEEP_LOG_LINEAR = 2,
};

struct fold_call {
	__u8 measure;
	__u8 keep;
	__u8 place;		/* moments: which of the cell's */
	__u8 spare[5];
};
_Static_assert(sizeof(struct fold_call) == 8, "struct fold_call");

struct fold {
	__u64 interval_ns;
	__u32 keys;
	__u8 clauses;		/* of the demand, a bit each */
	__u8 call_count;
	__u8 marked;		/* only on devices that are marked for it */
	__u8 flag;		/* says in a record that it was folded */
	struct fold_call calls[FOLD_CALLS];
	__u64 limits[FOLD_CALLS][FOLD_LIMITS];	/* ascending, the rest the greatest there is */
};
_Static_assert(sizeof(struct fold) == 80 + 8 * 512, "struct fold");

/* Fixed before the programs are loaded, like struct config. */
struct folding {
	struct fold folds[FOLDS];
	__u32 count;
	__u32 cells;		/* per processor, a power of two */
	__u32 blocks;		/* likewise */
	__u32 moments;		/* in each cell */
	__u32 keys;		/* of all folds together */
	__u32 spare;
};
_Static_assert(sizeof(struct folding) == 2 * 4176 + 24, "struct folding");

/* The ends of the intervals that are open, on the monotonic clock; 0 is none. */
struct fold_window {
	__u64 end_ns[2];
};
_Static_assert(sizeof(struct fold_window) == 16, "struct fold_window");

/* What one processor has: the last cell that was taken of each fold and window, + 1; each names the next. */
struct fold_cpu {
	__u64 busy;
	__u64 unrecorded;	/* folded, and no record was written */
	__u64 spare[2];
	__u64 cells[FOLDS][2];
};
_Static_assert(sizeof(struct fold_cpu) == 64, "struct fold_cpu");

struct moments {
	__u64 count;
	__u64 sum;
	__u64 min;
	__u64 max;
};

/* Where key[0] of a cell has what. */
#define CELL_OP_SHIFT 32
#define CELL_KERNEL (1ULL << 40)
#define CELL_FOLD_SHIFT 48
#define CELL_WINDOW_SHIFT 56
#define CELL_TAKEN (1ULL << 63)

/* A group; as many moments follow as the folds keep. */
struct fold_cell {
	__u64 key[5];		/* 0 is free; pid; cgroup; command name */
	__u64 rows;
	__u32 next;
	__u32 blocks;		/* the last block taken, + 1 */
	__u32 slot;		/* known to who finds it, but the verifier must not tell ways apart */
	__u32 spare;
	struct moments moments[FOLD_CALLS];
};
_Static_assert(sizeof(struct fold_cell) == 64 + 8 * 32, "struct fold_cell");

struct fold_bin {
	__u64 count;
	__u64 offsets;		/* how far its values lie in it, added up */
};

/* Some bins of a group. */
struct fold_block {
	__u64 key;		/* cell + 1, call, number among the blocks of the call; 0 is free */
	__u64 next;
	struct fold_bin bins[FOLD_BINS];
};
_Static_assert(sizeof(struct fold_block) == 272, "struct fold_block");

#endif

/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Definitions that the kernel programs of tap.bpf.c and the reader in layout.rs share: records, tables,
 * counters and the configuration. Both sides assert the sizes.
 */
#ifndef WEIR_TAP_H
#define WEIR_TAP_H

/* The kind of a record is in the upper half of `what`, its operation in the lower half. */
enum kind {
	KIND_REQUEST = 0,	/* issued; a flush without data: inserted */
	KIND_RESPONSE = 1,	/* completed without error */
	KIND_ERROR = 2,		/* completed with an error */
	KINDS = 3,
};

/* Operations, numbered as weir_model::Op. */
enum op {
	OP_READ = 0,
	OP_WRITE = 1,
	OP_FLUSH = 2,
	OP_DISCARD = 3,
	OP_WRITE_ZEROES = 4,
	OP_OTHER = 7,		/* passthrough and zone commands: counted, without records */
};

/* Flags of a request, and what is not known of it. */
enum flag {
	FLAG_FUA = 1,
	FLAG_READ_AHEAD = 2,
	FLAG_SYNC = 4,
	FLAG_META = 8,
	FLAG_FOLDED = 16,	/* folded for the demand of the first fold */
	FLAG_KERNEL = 32,	/* a kernel thread submitted it */
	FLAG_ORPHAN = 64,	/* its submission was not seen */
	FLAG_FOLDED_TOO = 128,	/* folded for the demand of the second fold */
};

/* One event, in the ring of the processor on which it occurred. */
struct record {
	__u64 mark;		/* position in the ring's history + 1, once the record is complete */
	__u64 ts_ns;		/* CLOCK_MONOTONIC */
	__u64 request;		/* identifies the request while it is in flight; with `numbered`: its number */
	__u64 sector;		/* UNKNOWN for a flush */
	__u64 wait_ns;		/* insert to issue; a response whose issue was not seen: insert to complete */
	__u64 service_ns;	/* issue to complete */
	__u32 bytes;
	__u32 device;		/* dev_t as the kernel keeps it: major << 20 | minor */
	__u8 what;
	__u8 flags;
	__u16 status;		/* blk_status_t; kernels before 5.18: a negative errno */
	__u16 merges;		/* bios beyond the first */
	__u16 cpu;		/* that issued it */
};
_Static_assert(sizeof(struct record) == 64, "struct record");

/* A record with the submitter of the request and its relation to others, for queries that need them. */
struct wide_record {
	struct record narrow;
	__u64 cgroup;		/* id of the cgroup that owns the first bio, 0 if unknown */
	__u32 pid;		/* thread group, 0 if unknown */
	__u32 in_flight;	/* with `flow`: requests of the disk in flight at its issue, 0 if unknown */
	__s64 seek;		/* with `flow`: sectors from the previous request's last one, or NO_SEEK */
	__u64 interarrival_ns;	/* with `flow`: since the issue of the previous request, or UNKNOWN */
	__u64 comm[2];		/* command name, 0 if unknown; omitted if no query needs it */
};
_Static_assert(sizeof(struct wide_record) == 112, "struct wide_record");

/* A record with the file of the request as well. */
struct file_record {
	struct wide_record wide;
	__u64 path;		/* key of the table of paths, 0 if unknown */
	__u64 inode;		/* number in its file system, 0 if unknown */
};
_Static_assert(sizeof(struct file_record) == 128, "struct file_record");

/* The state of a request. */
enum stage {
	STARTED = 1,
	ISSUED = 2,
};

/* Events that change a request in flight. */
enum change {
	REQUEUED = 1,		/* will be issued again */
	CHANGED = 2,		/* a part is complete: sector and size have changed */
};

/* A request in flight. The first cache line has the fields that nearly every query needs. */
struct entry {
	__u64 insert_ns;	/* 0 if not seen */
	__u64 issue_ns;		/* 0 if not seen */
	__u64 sector;
	__u32 bytes;
	__u32 device;
	__u16 index;		/* row of the device in the counters */
	__u16 subject;		/* number + 1 of the subject whose histograms count it, 0: none */
	__u16 merges;
	__u16 cpu;
	__u16 status;		/* first error of a partial completion */
	__u8 op;
	__u8 flags;
	__u8 clauses;		/* that it may still pass */
	__u8 state;
	__u8 changed;		/* of enum change */
	__u8 odd;		/* made when the request was requeued or partly complete: its start is unknown */
	__u64 odd_ns;		/* the time at which it was made so */
	__u16 in_flight;	/* with `flow`: as in wide_record */
	__u8 way;		/* way of its bucket */
	__u8 spare;
	__u32 pid;
	__u64 cgroup;
	__u64 comm[2];
	__u64 number;		/* with `numbered` */
	__u64 path;		/* with `inode`: as in file_record */
	__u64 inode;
	__s64 seek;		/* with `flow`: as in wide_record */
	__u64 interarrival_ns;	/* likewise */
};
_Static_assert(sizeof(struct entry) == 128, "struct entry");
/* What user space reads of it. */
_Static_assert(__builtin_offsetof(struct entry, insert_ns) == 0, "struct entry");
_Static_assert(__builtin_offsetof(struct entry, issue_ns) == 8, "struct entry");
_Static_assert(__builtin_offsetof(struct entry, index) == 32, "struct entry");
_Static_assert(__builtin_offsetof(struct entry, subject) == 34, "struct entry");
_Static_assert(__builtin_offsetof(struct entry, odd_ns) == 48, "struct entry");
_Static_assert(__builtin_offsetof(struct entry, in_flight) == 56, "struct entry");

/* A bucket: the entries of up to eight requests; 0 is a free way. */
#define WAYS 8
struct bucket {
	__u64 request[WAYS];
};
_Static_assert(sizeof(struct bucket) == 64, "struct bucket");

/* State that user space has set for four devices or cgroups; one that is not found passes every test. */
#define SIBLINGS 4
struct known {
	__u64 key[SIBLINGS];	/* dev_t + 1 or cgroup id; 0 is free */
	__u32 index[SIBLINGS];	/* device: row of counters */
	__u32 marks[SIBLINGS];	/* device: bit 0: demanded; 1 + i: passes clause i */
};
_Static_assert(sizeof(struct known) == 64, "struct known");

/* Counters of one device on one processor. Row 0 is for devices that are not known yet. */
struct counts {
	__u64 seen;		/* completed requests */
	__u64 orphans;		/* completed requests whose submission was not seen */
	__u64 ring_full;	/* records lost */
	__u64 table_full;	/* requests without an entry */
	__u64 replaced;	/* entries whose completion was never seen: the request is reused */
	__u64 flush_commands;	/* issued by the kernel itself */
	__u64 other;		/* passthrough and zone commands */
	__u64 requeues;
	__u64 sectors_submitted; /* of bios of devices without requests, except discards */
	__u64 sectors_seen;	/* of those that completed */
	__u64 unordered;	/* requests whose relation to others is unknown, as their disk was too busy */
	__u64 spare;
};
_Static_assert(sizeof(struct counts) == 96, "struct counts");

/* State that changes while the programs run: their `.bss`. */
struct state {
	__u64 live;		/* set once all programs are attached; until then they do nothing */
	__u64 odd;		/* entries made while `track` is off (requeues, partial completions); mostly 0 */
	__u64 hist_until_ns;	/* nothing is entered into histograms from this time on */
	__u64 shed;		/* optional records are omitted until user space clears it */
	__u64 line[4];
	__u64 numbers;		/* assigned so far; in a cache line without other fields */
	__u64 numbers_line[7];
};
_Static_assert(sizeof(struct state) == 128, "struct state");

/* The tests of a clause, one bit each. */
enum test {
	TEST_OP = 1,
	TEST_DEVICE = 2,
	TEST_SECTOR = 4,
	TEST_SECTORS = 8,
	TEST_PID = 16,
	TEST_COMM = 32,
	TEST_CGROUP = 64,
	TEST_WAIT = 128,
	TEST_SERVICE = 256,
	TEST_LATENCY = 512,
	TEST_SECTOR_SPREAD = 1024,
};

/* The tests of a clause: all must pass; bounds are inclusive. */
#define CLAUSES 5		/* four alternatives of the demands, and one that only follows requests */
#define COMMS 4
struct clause {
	__u64 sector[2];
	__u64 wait_ns[2];
	__u64 service_ns[2];
	__u64 latency_ns[2];
	__u64 comm[COMMS][2];
	__u32 sectors[2];
	__u32 pid[2];
	__u32 sector_spread[2];	/* bounds of spread() of the sector */
	__u32 tests;
	__u8 ops;		/* bit per operation */
	__u8 comms;
	__u8 spare[2];
};
_Static_assert(sizeof(struct clause) == 160, "struct clause");

/* Fixed before the programs are loaded, so that the verifier removes what is not in use. */
struct config {
	struct clause clauses[CLAUSES];
	__u64 ops;		/* the enum op of each of the kernel's operations below 16, four bits each */
	__u32 clause_count;
	__u32 ring_slots;	/* records per processor, a power of two */
	__u32 bucket_mask;
	__u32 device_mask;
	__u32 cgroup_mask;
	__u32 device_rows;	/* rows of counters per processor */
	/* Bits and numbers of the running kernel; 0 if not known. */
	__u32 flush_step;	/* of rq_flags: a step of a flush sequence (RQF_FLUSH_SEQ) */
	__u32 op_mask;		/* of cmd_flags: the operation */
	__u32 fua;		/* of cmd_flags, as the following ones */
	__u32 read_ahead;
	__u32 sync;
	__u32 meta;
	__u32 flow_pasts;	/* histories per disk: two per processor */
	__u32 process_mask;	/* of the table of known processes */
	__u8 kinds[KINDS];	/* clauses that select this kind */
	__u8 track;		/* keep an entry for each request from issue to completion */
	__u8 start;		/* from insertion, with times and submitter; else flushes only */
	__u8 issue;		/* issues are observed; otherwise merges are detected at completion */
	__u8 insert_only;	/* block_io_start is missing, block_rq_insert replaces it */
	__u8 wide;
	__u8 cgroup;
	__u8 task_cgroup;	/* one hierarchy: the submitter's cgroup can replace the bio's */
	__u8 comm;
	__u8 pid;
	__u8 merges;
	__u8 flags;
	__u8 ordered;		/* plain stores become visible in order (x86) */
	__u8 kernel;		/* distinguish kernel threads from processes */
	__u8 numbered;		/* requests are numbered as they are issued */
	__u8 optional;		/* clauses whose records are omitted before a ring is full */
	__u8 idle;		/* of enum mq_rq_state: not issued yet (MQ_RQ_IDLE); 255 if not known */
	__u8 inode;		/* find the file of each request */
	__u8 path;		/* and its path */
	__u8 flow;		/* clauses for whose requests the relation to others is determined */
	__u8 spare[2];
};
_Static_assert(sizeof(struct config) == 888, "struct config");

#endif

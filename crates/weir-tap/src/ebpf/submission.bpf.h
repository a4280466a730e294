/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The way from a file to a device: direct I/O, requests of io_uring, bios and requests, as kernel types,
 * and what several programs read from them.
 *
 * Sources: include/linux/{fs,uio,blk-mq,blk_types,io_uring_types}.h, fs/iomap/direct-io.c.
 */
#ifndef WEIR_SUBMISSION_BPF_H
#define WEIR_SUBMISSION_BPF_H

#include "file.bpf.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

#ifndef WEIR_KERNEL_BPF_H
struct task_struct {
	__u32 flags;
};

struct request {
	__u32 cmd_flags;
	__u32 __data_len;
	struct bio *bio;
};
#endif

struct kiocb {
	struct file *ki_filp;
	__s64 ki_pos;
	int ki_flags;
};

struct iov_iter {
	bool data_source;
	unsigned long count;
};

struct iomap_dio {
	struct kiocb *iocb;
	__s64 size;
};

struct io_cqe {
	__u64 user_data;
};

struct io_kiocb {
	struct io_cqe cqe;
};

enum req_op {
	REQ_OP_READ,
	REQ_OP_WRITE,
	REQ_OP_DISCARD,
	REQ_OP_SECURE_ERASE,
	REQ_OP_WRITE_ZEROES,
};

enum req_flag_bits {
	__REQ_SYNC,
	__REQ_META,
	__REQ_RAHEAD,
};

#pragma clang attribute pop

#define NUMBER_OF(type, enumerator)                                                                \
	__builtin_preserve_enum_value(*(typeof(enum type) *)enumerator, 1)

/* include/linux/blk_types.h, include/linux/sched.h, include/linux/fs.h, include/uapi/linux/magic.h */
#define REQ_OP_MASK 0xff
#define PF_IO_WORKER 0x00000010
#define PF_KTHREAD 0x00200000
#define IOCB_DSYNC 2
#define IOCB_SYNC 4
#define IOCB_DIRECT (1 << 17)
#define BTRFS_SUPER_MAGIC 0x9123683E
/* The first inode of a file in btrfs (BTRFS_FIRST_FREE_OBJECTID): smaller ones are its own, such as
 * that of its trees, which has no mode. */
#define BTRFS_FIRST_FILE 256
#define XFS_SUPER_MAGIC 0x58465342

#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_LRU_HASH 9
#define BPF_MAP_TYPE_TASK_STORAGE 29
#define BPF_F_NO_PREALLOC 1
#define BPF_LOCAL_STORAGE_GET_F_CREATE 1

static long (*bpf_map_update_elem)(void *map, const void *key, const void *value,
				   __u64 flags) = (void *)2;
static long (*bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static void *(*bpf_task_storage_get)(void *map, struct task_struct *task, void *value,
				     __u64 flags) = (void *)156;

static long (*bpf_probe_read_user)(void *to, __u32 bytes, const void *from) = (void *)112;

/* What a tapdisk has stored about its request at the address that is its user_data
 * (src/tapdisk/mark.rs). */
struct request_mark {
	__u64 magic;
	__u64 address;
	__u64 number;
	__u64 disk_key;
	__u64 received_ns;
};

#define MARK_MAGIC 0x776569726d726b01ULL
#define MARK_ALIGNMENT 64
#define MARK_FREE_BITS 1
#define USER_ADDRESS_BITS 56

/* Reads the mark of a request of io_uring that this task submits; false if it has none. */
static __always_inline bool has_mark(struct request_mark *mark, __u64 user_data)
{
	__u64 address = user_data & ~(__u64)MARK_FREE_BITS;

	if (!address || address & (MARK_ALIGNMENT - 1) || address >> USER_ADDRESS_BITS)
		return false;
	if (bpf_probe_read_user(mark, sizeof(*mark), (const void *)address))
		return false;
	return mark->magic == MARK_MAGIC && mark->address == address;
}

#define HAS_FLAG(flags, flag) ((flags) >> NUMBER_OF(req_flag_bits, flag) & 1)

/* The letter of an operation: of a request or a bio; 0 if it moves no data of a device. */
static __always_inline char letter_of(__u32 flags)
{
	__u32 op = flags & REQ_OP_MASK;

	if (op == NUMBER_OF(req_op, REQ_OP_READ))
		return 'r';
	if (op == NUMBER_OF(req_op, REQ_OP_WRITE))
		return 'w';
	if (op == NUMBER_OF(req_op, REQ_OP_DISCARD) || op == NUMBER_OF(req_op, REQ_OP_SECURE_ERASE))
		return 'd';
	if (op == NUMBER_OF(req_op, REQ_OP_WRITE_ZEROES))
		return 'z';
	return 0;
}

/* True if a file system holds the device. One with several devices has one of them in its super block. */
static __always_inline bool is_of_file_system(struct block_device *device)
{
	struct super_block *sb = CAST(super_block, device->bd_holder);

	return device->bd_holder &&
	       (sb->s_bdev == device || sb->s_magic == BTRFS_SUPER_MAGIC ||
		sb->s_magic == XFS_SUPER_MAGIC);
}

/* True if the file system's structures, rather than a file's data, are in the page cache of `inode`. */
static __always_inline bool has_metadata(struct inode *inode)
{
	return !is_regular(inode) ||
	       (inode->i_sb->s_magic == BTRFS_SUPER_MAGIC && inode->i_ino < BTRFS_FIRST_FILE);
}

#endif

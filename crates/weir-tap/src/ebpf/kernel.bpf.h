/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The few kernel types that tap.bpf.c reads, written by hand.
 *
 * Structures declare only the fields in use: CO-RE relocates each access to the offset of the field in
 * the running kernel. Names with a suffix after three underscores are other versions of the same type.
 * Enumerators are not relocated: CO-RE finds them by the name of their enumeration, which some lack.
 * kernel.rs looks them up by their own names and passes their numbers in struct config.
 * docs/kernels.md lists every name here with the kernels that have it.
 * Sources: include/linux/{blk_types,blk-mq,blkdev,sched}.h.
 */
#ifndef WEIR_KERNEL_BPF_H
#define WEIR_KERNEL_BPF_H

#include "cgroup.bpf.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct task_struct {
	__u32 flags;
};

/* With files, tap_file.bpf.c reads more of these. */
#ifdef WITH_FILES
#include "bio_with_file.bpf.h"
#else
struct gendisk {
	int major;
	int first_minor;
	struct request_queue *queue;
};

struct block_device {
	struct gendisk *bd_disk;
	__u32 bd_dev;
};

struct bvec_iter {
	__u64 bi_sector;
	__u32 bi_size;
} __attribute__((packed));

struct bio {
	struct bio *bi_next;
	struct block_device *bi_bdev;
	__u32 bi_opf;
	__u8 bi_status;
	struct bvec_iter bi_iter;
};
#endif

struct request_queue {
	void *mq_ops;
	struct gendisk *disk;
};

/* Only the name of this type is used: the name of a field's type must match. */
enum mq_rq_state {
	MQ_RQ_STATES,
};

struct request {
	struct request_queue *q;
	__u32 cmd_flags;
	__u32 rq_flags;
	__u32 __data_len;
	__u64 __sector;
	struct bio *bio;
	enum mq_rq_state state;
};

/* Before 5.17 the request had the disk. */
struct request___disk {
	struct gendisk *rq_disk;
};

#pragma clang attribute pop

/* include/linux/sched.h: a kernel thread. A macro since 2.6, so not in the type information. */
#define PF_KTHREAD 0x00200000

#endif

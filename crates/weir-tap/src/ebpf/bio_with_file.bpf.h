/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Bios and devices with the fields that lead to a file. kernel.bpf.h includes it among its types, and the
 * same types of file.bpf.h have the fields that these need. Kernel 6.6 and newer.
 * Sources: include/linux/{blk_types,blkdev}.h.
 */
#ifndef WEIR_BIO_WITH_FILE_BPF_H
#define WEIR_BIO_WITH_FILE_BPF_H

struct gendisk {
	int major;
	int first_minor;
	struct request_queue *queue;
	char disk_name[32];
};

struct block_device {
	struct gendisk *bd_disk;
	__u32 bd_dev;
	void *bd_holder;
};

struct bvec_iter {
	__u64 bi_sector;
	__u32 bi_size;
	__u32 bi_idx;
	__u32 bi_bvec_done;
};

struct bio {
	struct bio *bi_next;
	struct block_device *bi_bdev;
	__u32 bi_opf;
	__u8 bi_status;
	struct bvec_iter bi_iter;
	void *bi_private;
	unsigned short bi_vcnt;
	struct bio_vec *bi_io_vec;
};

#endif

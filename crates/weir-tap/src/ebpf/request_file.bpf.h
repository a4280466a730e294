/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The file of a request, found when the device receives it.
 *
 *  - Direct I/O: bi_private is the iomap_dio. Its kiocb leads to the file, that to its inode, and the inode
 *    to the super block that holds the device: nothing else that a bio points to does, so that
 *    neither a table of direct I/Os nor the address of a function is needed.
 *  - btrfs: the bio is a part of a btrfs_bio, which has the inode; a copy for another device leads
 *    to that bio.
 *  - Page cache: the page of the first segment leads to the mapping and so to the inode.
 *  - A bio that the block layer has split off points to the rest, which shares its segments.
 *  - Clones that dm and md make share the segments of the bio that the file system sent: its file
 *    is kept in a table until it ends.
 *
 * A request whose bios have different files has none.
 */
#ifndef WEIR_REQUEST_FILE_BPF_H
#define WEIR_REQUEST_FILE_BPF_H

#include "request.bpf.h"

#ifndef WITH_FILES

static __always_inline void add_file(struct io *io __attribute__((unused)),
				     struct bio *bio __attribute__((unused)),
				     __u64 request __attribute__((unused)))
{
}

static __always_inline void add_tied_file(struct io *io __attribute__((unused)),
					  struct bio *bio __attribute__((unused)))
{
}

#else

#include "submission.bpf.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct btrfs_inode {
	struct inode vfs_inode;
};

struct btrfs_bio {
	struct btrfs_inode *inode;
	struct bio bio;
};

/* A copy of a bio for one device of several. */
struct btrfs_io_context {
	struct bio *orig_bio;
};

struct btrfs_io_stripe {
	struct btrfs_io_context *bioc;
};

#pragma clang attribute pop

#define BPF_NOEXIST 1

/* Why the file of a request is not known. Positions in the list of causes of files.rs. */
enum untied {
	TIED = 0,
	METADATA,		/* the file system's own structures */
	NO_FILE,		/* its pages are in no page cache */
	NO_DATA,		/* flushes and discards have no pages */
	NO_FILE_SYSTEM,		/* no file system holds the device, and no bio above it is known */
	SEVERAL_FILES,		/* its bios have different files */
	TABLE_FULL,		/* no room for the bio of a dm or md device */
	NOT_SEEN,		/* an interrupt issued another request meanwhile */
	CAUSES = 8,
};

struct causes {
	__u64 requests[CAUSES];
};

TABLE(untied, sizeof(struct causes));

/* The bios that file systems sent to dm and md devices, by the address of their segments. */
struct tie {
	__u64 bio;
	__u64 path;
	__u64 inode;
	__u64 cause;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(key_size, 8);
	__uint(value_size, sizeof(struct tie));
	__uint(max_entries, 1 << 15);
} ties SEC(".maps");

/* ---- The file of a bio --------------------------------------------------------------------- */

/* The file of a bio. */
struct bio_file {
	struct inode *inode;	/* NULL: not found */
	struct dentry *dentry;	/* the name that was opened; NULL: any of the inode */
	__u32 cause;
};

/* True for an inode of this file system: other memory does not lead there and back. */
static __always_inline bool is_in(struct inode *inode, struct super_block *sb)
{
	return inode->i_sb == sb && inode->i_mapping->host == inode;
}

/* The inode of a bio that btrfs sends. Types of a module can be read, but no pointer can have them. */
static __always_inline struct inode *btrfs_inode_of(struct bio *bio, struct super_block *sb)
{
	__u64 own = LOAD(btrfs_bio, number_of(bio) - OFFSET_OF(btrfs_bio, bio), inode);
	struct inode *inode = CAST(inode, own + OFFSET_OF(btrfs_inode, vfs_inode));

	return is_in(inode, sb) ? inode : NULL;
}

/* The bio of which this one is a part or a copy, with the same segments; else itself. */
static __always_inline struct bio *original_of(struct bio *bio)
{
	struct bio *other = CAST(bio, bio->bi_private);

	if (other->bi_io_vec == bio->bi_io_vec)
		return other;
	return bio;
}

/* As original_of, of a copy that btrfs makes for one device of several. */
static __always_inline struct bio *btrfs_original_of(struct bio *bio)
{
	struct bio *other;
	__u64 context;

	if (!core_field_exists(((struct btrfs_io_stripe *)0)->bioc) ||
	    !core_field_exists(((struct btrfs_io_context *)0)->orig_bio))
		return bio;
	context = LOAD(btrfs_io_stripe, number_of(bio->bi_private), bioc);
	other = CAST(bio, LOAD(btrfs_io_context, context, orig_bio));
	return other->bi_io_vec == bio->bi_io_vec ? other : bio;
}

static __always_inline struct bio_file no_file(__u32 cause)
{
	return (struct bio_file){ .cause = cause };
}

/* The file of a bio whose device a file system holds. */
static __always_inline struct bio_file file_of_bio(struct bio *bio, struct super_block *sb)
{
	struct cached cached;
	struct inode *inode;
	struct kiocb *iocb;
	struct file *file;
	struct bio *whole = original_of(bio);

	iocb = CAST(iomap_dio, whole->bi_private)->iocb;
	file = iocb->ki_filp;
	inode = file->f_inode;
	if (iocb->ki_flags & IOCB_DIRECT && is_in(inode, sb))
		return (struct bio_file){ .inode = inode, .dentry = dentry_of_file(file) };
	if (sb->s_magic == BTRFS_SUPER_MAGIC && core_field_exists(((struct btrfs_bio *)0)->inode)) {
		whole = btrfs_original_of(whole);
		inode = btrfs_inode_of(whole, sb);
		if (inode && has_metadata(inode))
			return no_file(METADATA);
		if (inode)
			return (struct bio_file){ .inode = inode };
	}
	cached = cached_by(bio);
	if (cached.inode && cached.inode->i_sb == sb && !has_metadata(cached.inode))
		return (struct bio_file){ .inode = cached.inode };
	if (cached.inode || HAS_FLAG(bio->bi_opf, __REQ_META))
		return no_file(METADATA);
	return no_file(NO_FILE);
}

/* ---- The file of a request ----------------------------------------------------------------- */

/* As records have it. */
struct request_file {
	__u64 path;
	__u64 inode;
	__u64 cause;
};

static __always_inline void count_untied(__u32 cause)
{
	__u32 zero = 0;
	struct causes *causes = bpf_map_lookup_elem(&untied, &zero);

	if (causes)
		__sync_fetch_and_add(&causes->requests[cause & (CAUSES - 1)], 1);
}

/* The bios of a request after the first: each step is one. */
struct bio_walk {
	__u64 bio;
	__u64 inode;		/* address */
	__u64 differs;
};

SUBPROGRAM long step_to_same_file(__u32 step __attribute__((unused)), struct bio_walk *w)
{
	struct bio *bio = CAST(bio, w->bio);
	struct bio_file found;

	if (!w->bio)
		return 1;
	found = file_of_bio(bio, CAST(super_block, bio->bi_bdev->bd_holder));
	w->differs = !found.inode || number_of(found.inode) != w->inode;
	w->bio = number_of(bio->bi_next);
	return w->differs;
}

#define FILE_BIOS_MAX 2048

/* The file of a bio that the file system sent, and of the bios after it in the request. */
static __always_inline void find_own(struct bio *bio, struct super_block *sb, struct request_file *file)
{
	struct bio_file found = file_of_bio(bio, sb);
	struct bio_walk walk = { .bio = number_of(bio->bi_next) };

	file->cause = found.cause;
	if (!found.inode)
		return;
	if (walk.bio) {
		walk.inode = number_of(found.inode);
		bpf_loop(FILE_BIOS_MAX, step_to_same_file, &walk, 0);
		if (walk.differs) {
			file->cause = SEVERAL_FILES;
			return;
		}
	}
	file->inode = found.inode->i_ino;
	if (!config.path)
		return;
	file->path = path_of(found.inode, found.dentry ? found.dentry : dentry_of(found.inode));
}

/* The bios of a request below dm or md after the first: each step is one. */
SUBPROGRAM long step_to_same_tie(__u32 step __attribute__((unused)), struct bio_walk *w)
{
	struct bio *bio = CAST(bio, w->bio);
	__u64 segments = number_of(bio->bi_io_vec);
	struct tie *tie;

	if (!w->bio)
		return 1;
	tie = bpf_map_lookup_elem(&ties, &segments);
	w->differs = !tie || tie->inode != w->inode;
	w->bio = number_of(bio->bi_next);
	return w->differs;
}

/* The file of a bio of a device below dm or md, and of the bios after it in the request. */
static __always_inline void find_above(struct bio *bio, struct request_file *file)
{
	__u64 segments = number_of(bio->bi_io_vec);
	struct tie *tie = bpf_map_lookup_elem(&ties, &segments);
	struct bio_walk walk = { .bio = number_of(bio->bi_next) };

	file->cause = tie ? tie->cause : NO_FILE_SYSTEM;
	if (!tie || tie->cause)
		return;
	walk.inode = tie->inode;
	if (walk.bio)
		bpf_loop(FILE_BIOS_MAX, step_to_same_tie, &walk, 0);
	if (walk.differs) {
		file->cause = SEVERAL_FILES;
		return;
	}
	file->inode = tie->inode;
	file->path = tie->path;
}

SUBPROGRAM int find_file(struct bio *bio, struct request_file *file)
{
	struct block_device *device = bio->bi_bdev;

	if (!bio->bi_io_vec)
		file->cause = NO_DATA;
	else if (is_of_file_system(device))
		find_own(bio, CAST(super_block, device->bd_holder), file);
	else
		find_above(bio, file);
	return 0;
}

/* What on_find has found for on_issue, which runs next: the stack of one program is too small for both. */
struct found {
	__u64 request;
	struct request_file file;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(key_size, 4);
	__uint(value_size, sizeof(struct found));
	__uint(max_entries, 1);
} found SEC(".maps");

SEC("tp_btf/block_rq_issue")
int on_find(__u64 *ctx)
{
	struct request *rq = (struct request *)ctx[0];
	struct request_file file = {};
	struct bio *bio = rq->bio;
	struct found *result;
	__u32 zero = 0;

	if (!state.live || !bio || !(device_marks(bio->bi_bdev->bd_dev).bits & MARK_WANTED))
		return 0;
	find_file(bio, &file);
	result = bpf_map_lookup_elem(&found, &zero);
	if (result) {
		result->file = file;
		result->request = name_of(rq);
	}
	return 0;
}

static __always_inline void add_file(struct io *io, struct bio *bio, __u64 request)
{
	struct found *result;
	__u32 zero = 0;
	__u32 cause;

	if (!config.inode)
		return;
	cause = NO_DATA;
	result = bio ? bpf_map_lookup_elem(&found, &zero) : NULL;
	if (result) {
		/* Another request was issued between the two programs. */
		cause = NOT_SEEN;
		if (result->request == request) {
			cause = result->file.cause;
			io->path = result->file.path;
			io->inode = result->file.inode;
		}
	}
	if (cause)
		count_untied(cause);
}

/*
 * The file of a bio for a device without requests, which on_tie has found just before: the stack of one
 * program is too small for both.
 */
static __always_inline void add_tied_file(struct io *io, struct bio *bio)
{
	__u64 segments;
	struct tie *tie;
	__u32 cause = NO_DATA;

	if (!config.inode)
		return;
	segments = number_of(bio->bi_io_vec);
	if (segments) {
		tie = bpf_map_lookup_elem(&ties, &segments);
		cause = tie ? tie->cause : NO_FILE_SYSTEM;
		if (tie && !cause) {
			io->path = tie->path;
			io->inode = tie->inode;
		}
	}
	if (cause)
		count_untied(cause);
}

/* ---- Bios that file systems send to dm and md devices ----------------------------------------- */

/* True if bios for this device are sent on to others, as clones with the same segments. */
static __always_inline bool is_stacked(struct block_device *device)
{
	struct gendisk *disk = device->bd_disk;

	return !disk->queue->mq_ops || (disk->disk_name[0] == 'd' && disk->disk_name[1] == 'm' &&
					disk->disk_name[2] == '-');
}

SEC("tp_btf/block_bio_queue")
int on_tie(__u64 *ctx)
{
	struct bio *bio = CAST(bio, ctx[0]);
	struct block_device *device = bio->bi_bdev;
	struct tie tie = {}, *other;
	struct request_file file = {};
	__u64 segments;

	if (!state.live || !is_stacked(device) || !is_of_file_system(device) || !bio->bi_io_vec)
		return 0;
	find_own(bio, CAST(super_block, device->bd_holder), &file);
	tie.bio = number_of(bio);
	tie.path = file.path;
	tie.inode = file.inode;
	tie.cause = file.cause;
	segments = number_of(bio->bi_io_vec);
	if (!bpf_map_update_elem(&ties, &segments, &tie, BPF_NOEXIST))
		return 0;
	/* A loop device passes the segments of a bio above it on to its own file. */
	other = bpf_map_lookup_elem(&ties, &segments);
	if (!other)
		count_untied(TABLE_FULL);
	else if (other->bio != tie.bio)
		other->cause = SEVERAL_FILES;
	return 0;
}

SEC("tp_btf/block_bio_complete")
int on_untie(__u64 *ctx)
{
	struct bio *bio = CAST(bio, ctx[1]);
	__u64 segments = number_of(bio->bi_io_vec);
	struct tie *tie = bpf_map_lookup_elem(&ties, &segments);

	if (tie && tie->bio == number_of(bio))
		bpf_map_delete_elem(&ties, &segments);
	return 0;
}

#endif
#endif

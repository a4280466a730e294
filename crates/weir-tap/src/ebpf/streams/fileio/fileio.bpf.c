// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/*
 * Stream `FileIO`: the requests that file systems send towards their devices.
 *
 *  - Direct I/O: from iomap_dio_rw_begin to iomap_dio_complete, one event for each, whatever number of
 *    bios it needs. Both have the kiocb, which identifies it on all file systems that use iomap. A read
 *    that sent no bio (a hole, or an attempt that would have waited) is no request.
 *  - Buffered I/O: a bio whose pages are in the page cache of a file, from block_bio_queue to its end.
 *    Read-ahead, page faults and write-back have no request of their own above that. A bio of a device
 *    with a queue of requests ends at block_rq_complete: with all its bytes, if it was split. A bio of
 *    dm or md ends at block_bio_complete.
 *  - fsync: from its beginning to its end, which ext4 reports; with xfs and btrfs it ends with the
 *    system call.
 *  - Truncations and punched holes (change.bpf.h).
 *  - Discards and zeroed ranges: their bios, which name no file.
 *
 * A bio is a file system's if the file system holds the bio's device: the copies of it that dm, md and
 * loop devices make go to devices that are held by those. Other bios of file systems are counted.
 *
 * Compile with `cargo xtask bpf`.
 */
#include "stream.bpf.h"
#include "file.bpf.h"
#include "submission.bpf.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct xfs_inode {
	__u64 i_nblocks;
	struct inode i_vnode;
};

#pragma clang attribute pop

/* Positions in the table of columns. */
#define COLUMN_PATH 2
#define COLUMN_OPENED 3

/* The key of a file that was not opened in an overlayfs. */
#define NOT_OVERLAID 1

enum file_flag {
	FLAG_DIRECT = 1,
	FLAG_SYNC = 2,
	FLAG_MMAP = 4,
	FLAG_READ_AHEAD = 8,
	FLAG_WRITE_BACK = 16,
	FLAG_GAPS = 32,
};

/* Positions in the list of counters. */
enum counter {
	TABLE_FULL = 0,		/* events lost */
	UNTIED_METADATA,	/* bios of the file system's own structures */
	UNTIED_NO_FILE,		/* bios whose pages are in no page cache */
	UNTIED_FLUSH,		/* bios without data */
	UNSEEN_END,		/* fsyncs and changes whose end has no tracepoint */
	UNSEEN_BEGIN,		/* punched holes whose beginning has no tracepoint */
};

struct file_io {
	struct event event;	/* until the end: `ts_ns` is the beginning */
	__u64 latency_ns;	/* until the end: bytes, of earlier parts or of completed requests */
	__u64 inode;		/* UNKNOWN: no file */
	__u64 offset;		/* UNKNOWN: none */
	__u64 bytes;
	__u64 path;		/* key; 0: unknown */
	__u64 opened;		/* key of the path in an overlayfs; 0: unknown */
	__u64 cgroup;
	__u64 user_data;	/* UNKNOWN: not io_uring's */
	__u64 comm[2];
	__u32 pid;
	__u32 tid;
	__u32 device;		/* of the file system; 0: unknown */
	__u32 fs;		/* its magic number */
	char op;
	__u8 flags;
	__s16 status;		/* negative: an errno; positive: a status of the block layer */
	__u8 by_kernel;		/* a kernel thread submitted it */
	__u8 is_sent;		/* a bio has been sent for it */
	__u8 spare[2];
};

/* Requests that have begun, by the address of their kiocb or bio. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(key_size, 8);
	__uint(value_size, sizeof(struct file_io));
	__uint(max_entries, 1 << 16);
} pending SEC(".maps");

/* What a task does. */
struct doing {
	__u64 iocb;		/* the direct I/O that it submits; 0: none */
	__u64 request;		/* the last request of io_uring that it submitted */
	__u64 user_data;	/* of that */
	__u64 faulted;		/* the mapping of the file that it reads by a page fault; 0: none */
	struct file_io sync;	/* if `op` is set */
	struct file_io change;	/* the same, of a truncation or a punched hole */
	__u64 changed;		/* the inode of that; 0: it is removed */
	__u64 is_sent;		/* a bio has been sent for `iocb` */
	__u64 live;		/* the value of the state then */
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct doing);
} tasks SEC(".maps");

/* The user data of requests of io_uring that a worker executes, by their address. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(key_size, 8);
	__uint(value_size, 8);
	__uint(max_entries, 1 << 13);
} punted SEC(".maps");

static __always_inline struct doing *doing_now(__u64 flags)
{
	struct doing *doing = bpf_task_storage_get(&tasks, bpf_get_current_task_btf(), NULL, flags);

	/* What it did when the programs were attached the last time has ended unseen. */
	if (doing && doing->live != state.live) {
		doing->iocb = 0;
		doing->request = 0;
		doing->faulted = 0;
		doing->sync.op = 0;
		doing->change.op = 0;
		doing->is_sent = 0;
		doing->live = state.live;
	}
	return doing;
}

/* ---- Begin and end of a request ------------------------------------------------------------ */

static __always_inline void begin(struct file_io *io, struct super_block *sb)
{
	__u64 id = bpf_get_current_pid_tgid();

	io->event.ts_ns = bpf_ktime_get_ns();
	io->pid = id >> 32;
	io->tid = id;
	bpf_get_current_comm(io->comm, sizeof(io->comm));
	io->by_kernel = !!(bpf_get_current_task_btf()->flags & PF_KTHREAD);
	io->cgroup = config.unified ? bpf_get_current_cgroup_id() : 0;
	io->device = sb->s_bdev->bd_dev;
	io->fs = sb->s_magic;
	io->inode = UNKNOWN;
	io->offset = UNKNOWN;
	io->user_data = UNKNOWN;
}

static __always_inline void of_file(struct file_io *io, struct inode *inode, struct dentry *dentry)
{
	io->inode = inode->i_ino;
	if (config.columns >> COLUMN_PATH & 1 || config.columns >> COLUMN_OPENED & 1)
		io->path = path_of(inode, dentry);
}

/* What the process opened, if overlayfs opened the file for it. */
static __always_inline void as_opened(struct file_io *io, struct file *file)
{
	struct dentry *dentry;

	if (!(config.columns >> COLUMN_OPENED & 1))
		return;
	dentry = dentry_opened(file);
	io->opened = dentry ? path_of(dentry->d_inode, dentry) : NOT_OVERLAID;
}

SUBPROGRAM int finish(struct file_io *io)
{
	__u64 now = bpf_ktime_get_ns();

	io->latency_ns = now - io->event.ts_ns;
	io->event.ts_ns = now;
	EMIT(*io);
	return 0;
}

static __always_inline void keep(__u64 key, const struct file_io *io)
{
	if (bpf_map_update_elem(&pending, &key, io, 0))
		count(TABLE_FULL);
}

/* ---- io_uring ------------------------------------------------------------------------------ */

/* The number of a request: that of a tapdisk is in its mark. */
static __always_inline __u64 number_by(__u64 user_data)
{
	struct request_mark mark;

	return has_mark(&mark, user_data) ? mark.number : user_data;
}

SEC("tp_btf/io_uring_submit_req")
int on_uring_submit(__u64 *ctx)
{
	struct io_kiocb *request = (struct io_kiocb *)ctx[0];
	struct doing *doing = doing_now(BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!doing)
		return 0;
	doing->request = number_of(request);
	doing->user_data = number_by(request->cqe.user_data);
	return 0;
}

SEC("tp_btf/io_uring_queue_async_work")
int on_uring_punt(__u64 *ctx)
{
	struct io_kiocb *request = (struct io_kiocb *)ctx[0];
	__u64 address = number_of(request), user_data = number_by(request->cqe.user_data);

	bpf_map_update_elem(&punted, &address, &user_data, 0);
	return 0;
}

/* A request of io_uring begins with its kiocb. */
static __always_inline __u64 user_data_of(__u64 iocb, const struct doing *doing)
{
	__u64 *user_data;

	if (doing->request == iocb)
		return doing->user_data;
	if (!(bpf_get_current_task_btf()->flags & PF_IO_WORKER))
		return UNKNOWN;
	user_data = bpf_map_lookup_elem(&punted, &iocb);
	return user_data ? *user_data : UNKNOWN;
}

/* True of kernel threads and workers of io_uring. */
static __always_inline bool makes_no_call(void)
{
	return bpf_get_current_task_btf()->flags & (PF_IO_WORKER | PF_KTHREAD);
}

static __always_inline struct inode *inode_of_xfs(__u64 own)
{
	return CAST(inode, own + OFFSET_OF(xfs_inode, i_vnode));
}

/* ---- Direct I/O ---------------------------------------------------------------------------- */

SEC("tp_btf/iomap_dio_rw_begin")
int on_direct_begin(__u64 *ctx)
{
	struct kiocb *kiocb = (struct kiocb *)ctx[0];
	struct iov_iter *iter = (struct iov_iter *)ctx[1];
	struct file *file = kiocb->ki_filp;
	struct inode *inode = file->f_inode;
	struct doing *doing = doing_now(BPF_LOCAL_STORAGE_GET_F_CREATE);
	__u64 iocb = number_of(kiocb);
	struct file_io io = {};

	if (!doing) {
		count(TABLE_FULL);
		return 0;
	}
	/* The previous one of this task ended without a completion: nothing was sent. */
	if (doing->iocb && doing->iocb != iocb)
		bpf_map_delete_elem(&pending, &doing->iocb);
	begin(&io, inode->i_sb);
	of_file(&io, inode, dentry_of_file(file));
	as_opened(&io, file);
	io.offset = kiocb->ki_pos;
	io.bytes = iter->count;
	io.latency_ns = ctx[3];
	io.op = iter->data_source ? 'w' : 'r';
	io.flags = FLAG_DIRECT;
	if (kiocb->ki_flags & (IOCB_DSYNC | IOCB_SYNC))
		io.flags |= FLAG_SYNC;
	io.user_data = user_data_of(iocb, doing);
	doing->iocb = iocb;
	doing->is_sent = false;
	keep(iocb, &io);
	return 0;
}

SEC("tp_btf/iomap_dio_rw_queued")
int on_direct_queued(void)
{
	struct doing *doing = doing_now(0);

	if (doing)
		doing->iocb = 0;
	return 0;
}

SEC("tp_btf/iomap_dio_complete")
int on_direct_complete(__u64 *ctx)
{
	__u64 iocb = number_of((void *)ctx[0]);
	__s32 error = ctx[1];
	__s64 result = ctx[2];
	struct file_io *io = bpf_map_lookup_elem(&pending, &iocb);
	struct doing *doing = doing_now(0);

	if (doing && doing->iocb == iocb)
		doing->iocb = 0;
	if (!io)
		return 0;
	if (result < 0)
		error = result;
	io->status = error;
	if (!error)
		io->bytes = result > (__s64)io->latency_ns ? result - io->latency_ns : 0;
	/* The bios of a write may be sent by another task. */
	if (io->is_sent || (!error && io->op == 'w'))
		finish(io);
	bpf_map_delete_elem(&pending, &iocb);
	return 0;
}

/* True if the bio belongs to the direct I/O that its task submits. */
static __always_inline bool is_direct(struct bio *bio, struct doing *doing, bool is_cached)
{
	struct iomap_dio *dio = CAST(iomap_dio, bio->bi_private);
	struct file_io *io;

	if (!doing || !doing->iocb)
		return false;
	if (number_of(dio->iocb) != doing->iocb) {
		/* btrfs puts something else there. */
		io = bpf_map_lookup_elem(&pending, &doing->iocb);
		if (is_cached || !io || io->fs != BTRFS_SUPER_MAGIC)
			return false;
	}
	if (doing->is_sent)
		return true;
	doing->is_sent = true;
	io = bpf_map_lookup_elem(&pending, &doing->iocb);
	if (io) {
		io->is_sent = true;
		io->device = bio->bi_bdev->bd_dev;
	}
	return true;
}

/* ---- Bios ---------------------------------------------------------------------------------- */

SEC("tp_btf/block_bio_queue")
int on_bio_queue(__u64 *ctx)
{
	struct bio *bio = CAST(bio, ctx[0]);
	struct block_device *device = bio->bi_bdev;
	struct super_block *sb = CAST(super_block, device->bd_holder);
	__u32 bytes = bio->bi_iter.bi_size;
	struct cached cached = {};
	struct file_io io = {};
	struct doing *doing;
	__u64 cgroup;

	if (!is_of_file_system(device))
		return 0;
	if (!bytes) {
		count(UNTIED_FLUSH);
		return 0;
	}
	io.op = letter_of(bio->bi_opf);
	if (!io.op) {
		count(UNTIED_METADATA);
		return 0;
	}
	if (io.op == 'r' || io.op == 'w') {
		doing = doing_now(0);
		cached = cached_by(bio);
		if (is_direct(bio, doing, cached.inode != NULL))
			return 0;
		if (!cached.inode) {
			count(UNTIED_NO_FILE);
			return 0;
		}
		if (cached.inode->i_sb != sb || has_metadata(cached.inode)) {
			count(UNTIED_METADATA);
			return 0;
		}
		if (doing && doing->faulted && io.op == 'r' &&
		    doing->faulted == number_of(cached.inode))
			io.flags |= FLAG_MMAP;
	}
	begin(&io, sb);
	if (cached.inode) {
		of_file(&io, cached.inode, dentry_of(cached.inode));
		io.offset = cached.offset;
		if (cached.has_gaps)
			io.flags |= FLAG_GAPS;
		if (io.op == 'w')
			io.flags |= FLAG_WRITE_BACK;
	}
	/* Without the io controller the bio belongs to the root cgroup (1). */
	cgroup = cgroup_of(bio);
	if (cgroup > 1)
		io.cgroup = cgroup;
	io.bytes = bytes;
	io.device = device->bd_dev;
	if (HAS_FLAG(bio->bi_opf, __REQ_SYNC) && io.op == 'w')
		io.flags |= FLAG_SYNC;
	if (HAS_FLAG(bio->bi_opf, __REQ_RAHEAD))
		io.flags |= FLAG_READ_AHEAD;
	keep(number_of(bio), &io);
	return 0;
}

SEC("tp_btf/block_bio_complete")
int on_bio_complete(__u64 *ctx)
{
	struct bio *bio = CAST(bio, ctx[1]);
	__u64 address = number_of(bio);
	struct file_io *io = bpf_map_lookup_elem(&pending, &address);

	if (!io)
		return 0;
	if (bio->bi_status)
		io->status = bio->bi_status;
	finish(io);
	bpf_map_delete_elem(&pending, &address);
	return 0;
}

/* The bios of a request that complete: each step is one. */
struct bio_walk {
	__u64 bio;
	__u32 bytes;		/* that are left */
	__u32 status;
};

#define BIOS_MAX 2048

SUBPROGRAM long step_to_bio(__u32 step __attribute__((unused)), struct bio_walk *w)
{
	struct bio *bio = CAST(bio, w->bio);
	__u32 bytes = bio->bi_iter.bi_size;
	__u64 address = w->bio, done;
	struct file_io *io;

	if (!address || !w->bytes)
		return 1;
	if (bytes > w->bytes)
		bytes = w->bytes;
	w->bytes -= bytes;
	w->bio = number_of(bio->bi_next);
	io = bpf_map_lookup_elem(&pending, &address);
	if (!io && !bio->bi_vcnt) {
		/* A clone that was split off another bio for the same device belongs to that. */
		address = (__u64)bio->bi_private;
		io = bpf_map_lookup_elem(&pending, &address);
		if (io && io->device != bio->bi_bdev->bd_dev)
			io = NULL;
	}
	if (!io)
		return 0;
	if (w->status)
		io->status = w->status;
	done = __sync_fetch_and_add(&io->latency_ns, bytes) + bytes;
	if (done < io->bytes)
		return 0;
	finish(io);
	bpf_map_delete_elem(&pending, &address);
	return 0;
}

SEC("tp_btf/block_rq_complete")
int on_request_complete(__u64 *ctx)
{
	struct request *request = (struct request *)ctx[0];
	struct bio_walk walk = {
		.bio = number_of(request->bio),
		.bytes = ctx[2],
		.status = (__u8)ctx[1],
	};

	bpf_loop(BIOS_MAX, step_to_bio, &walk, 0);
	return 0;
}

/* ---- Page faults --------------------------------------------------------------------------- */

SEC("tp_btf/mm_filemap_fault")
int on_fault(__u64 *ctx)
{
	struct address_space *mapping = (struct address_space *)ctx[0];
	struct doing *doing = doing_now(BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (doing)
		doing->faulted = number_of(mapping->host);
	return 0;
}

/* The task reads by system call again. */
SEC("tp_btf/mm_filemap_get_pages")
int on_read(void)
{
	struct doing *doing = doing_now(0);

	if (doing)
		doing->faulted = 0;
	return 0;
}

/* ---- fsync --------------------------------------------------------------------------------- */

static __always_inline void begin_sync(struct inode *inode, struct dentry *dentry,
				       struct file *file, bool ends_with_call)
{
	struct doing *doing = doing_now(BPF_LOCAL_STORAGE_GET_F_CREATE);
	struct file_io io = {};

	if (!doing) {
		count(TABLE_FULL);
		return;
	}
	if (doing->sync.op)
		count(UNSEEN_END);
	begin(&io, inode->i_sb);
	of_file(&io, inode, dentry);
	if (file)
		as_opened(&io, file);
	io.op = 'f';
	if (ends_with_call && makes_no_call()) {
		io.op = 0;
		count(UNSEEN_END);
	}
	doing->sync = io;
}

SEC("tp_btf/ext4_sync_file_enter")
int on_ext4_sync(__u64 *ctx)
{
	struct file *file = (struct file *)ctx[0];

	begin_sync(file->f_inode, dentry_of_file(file), file, false);
	return 0;
}

static __always_inline void end_sync(struct doing *doing, __s64 result)
{
	if (!doing || !doing->sync.op)
		return;
	doing->sync.status = result < 0 ? result : 0;
	finish(&doing->sync);
	doing->sync.op = 0;
}

SEC("tp_btf/ext4_sync_file_exit")
int on_ext4_synced(__u64 *ctx)
{
	end_sync(doing_now(0), (__s32)ctx[1]);
	return 0;
}

SEC("tp_btf/xfs_file_fsync")
int on_xfs_sync(__u64 *ctx)
{
	struct inode *inode = inode_of_xfs(ctx[0]);

	begin_sync(inode, dentry_of(inode), NULL, true);
	return 0;
}

SEC("tp_btf/btrfs_sync_file")
int on_btrfs_sync(__u64 *ctx)
{
	struct file *file = (struct file *)ctx[0];

	begin_sync(file->f_inode, dentry_of_file(file), file, true);
	return 0;
}

#include "change.bpf.h"

SEC("tp_btf/sys_exit")
int on_call_end(__u64 *ctx)
{
	struct pt_regs *regs = (struct pt_regs *)ctx[0];
	struct doing *doing = doing_now(0);
	__s64 result = ctx[1];

	end_sync(doing, result);
	end_change_with_call(doing, regs, result);
	return 0;
}

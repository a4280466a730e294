// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/*
 * Stream `IOpath`: the requests of block devices, each with the file's request above it.
 *
 *  - A bio is tied to a file when it is queued: by the direct I/O that it belongs to (bi_private), or by
 *    the page cache of its first page. Clones of it that dm, md or a split make share its segments,
 *    so the ties are found by the address of the segments.
 *  - A bio of direct I/O that cannot have a clone needs no such tie: the direct I/O has the one path,
 *    and no other table is used.
 *  - A request of io_uring whose user_data is the address of a mark is that of a virtual disk.
 *  - A request takes the ties of its bios when it completes: one event for each bio. The events of
 *    a direct I/O wait until that completes too, and have the time between.
 *  - The times of a path: the system call or the submission to io_uring, the beginning of the file's
 *    request, the bio (block_bio_queue), the device (block_rq_issue), its end (block_rq_complete), the
 *    end of direct I/O (iomap_dio_complete).
 *
 * Compile with `cargo xtask bpf`.
 */
#define EVENT_BYTES_MAX 208
#include "stream.bpf.h"
#include "submission.bpf.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct queue_limits {
	__u32 max_sectors;
	__u32 max_segment_size;
	__u32 chunk_sectors;
};

struct request_queue {
	void *mq_ops;
	struct queue_limits limits;
};

struct gendisk {
	char disk_name[32];
	struct request_queue *queue;
};

/* In block_device: CO-RE ignores the suffix. */
struct block_device___disk {
	struct gendisk *bd_disk;
	__u64 bd_start_sect;
};

/* block/fops.c: a direct I/O of a block device. */
struct blkdev_dio {
	struct kiocb *iocb;
	struct bio bio;
};

struct btrfs_inode {
	struct inode vfs_inode;
};

struct btrfs_bio {
	struct btrfs_inode *inode;
	__u64 file_offset;
	struct bio bio;
};

#pragma clang attribute pop

#define BPF_NOEXIST 1

/* Positions in the table of columns. */
#define COLUMN_PATH 5
#define COLUMN_VM 10
#define COLUMN_VDISK 11
#define COLUMN_VSECTOR 12
#define COLUMN_PID 13
#define COLUMN_TID 14
#define COLUMN_COMM 15
#define COLUMN_CGROUP 16
#define COLUMN_SUBMIT 18
#define COLUMN_LATENCY 19
#define COLUMN_BLOCK_WAIT 23
#define COLUMN_DEVICE 24
#define COLUMN_REQUEST 26

/* True if a query reads the column: what only other columns need is not read. */
#define READS(column) (config.columns >> (column) & 1)

/* True if a query reads the virtual disk, which is found by the file and by the process. */
#define READS_DISK (READS(COLUMN_VM) || READS(COLUMN_VDISK) || READS(COLUMN_VSECTOR))

/* True if a query needs the time when the device receives a request: on_request_issue is attached. */
#define READS_ISSUE                                                                                \
	(READS(COLUMN_BLOCK_WAIT) || READS(COLUMN_DEVICE) || READS(COLUMN_SUBMIT) ||               \
	 READS(COLUMN_LATENCY))

enum path_flag {
	FLAG_DIRECT = 1,
	FLAG_SYNC = 2,
	FLAG_MMAP = 4,
	FLAG_READ_AHEAD = 8,
	FLAG_WRITE_BACK = 16,
	FLAG_GAPS = 32,
};

/* Why a bio is not tied to a file. Positions in the list of counters, too. */
enum cause {
	TABLE_FULL = 0,		/* as a cause: none */
	METADATA,		/* the file system's own structures */
	NO_FILE,		/* its pages are in no page cache */
	NO_DATA,		/* flushes and discards have no pages */
	NO_FILE_SYSTEM,		/* no file system holds the device */
	NOT_SEEN,		/* queued before the programs were attached */
	AMBIGUOUS,		/* two files are possible */
};
#define CAUSE_MASK 7

struct io_path {
	struct event event;
	__u64 latency_ns;	/* until the end: the time of the beginning */
	__u64 app_wait_ns;	/* these times: UNKNOWN if the request did not cross the level */
	__u64 file_ns;
	__u64 block_wait_ns;
	__u64 device_ns;
	__u64 completion_ns;
	__u64 sector;
	__u64 offset;
	__u64 inode;
	__u64 path;
	__u64 cgroup;
	__u64 user_data;
	__u64 comm[2];
	__u64 request;		/* numbers */
	__u64 parent;
	__u32 bytes;
	__u32 pid;
	__u32 tid;
	__u32 device;
	__u32 fs;
	__u16 parts;
	__u16 part;
	char op;
	__u8 flags;
	__s16 status;
	__u8 by_kernel;
	__u8 cause;
	__u8 spare[2];
	__u64 disk_key;		/* of a tapdisk; 0: it is no request of one */
	__u64 vdisk_wait_ns;
	__u64 vsector;
};
_Static_assert(sizeof(struct io_path) == EVENT_BYTES_MAX, "struct io_path");

/* A direct I/O in flight, by the address of its kiocb. */
struct direct {
	struct io_path path;	/* what its bios have in common; with a whole bio, that of the bio */
	__u64 begin_ns;
	__u64 inode;		/* addresses */
	__u64 sb;		/* 0: it has completed */
	__u64 whole;		/* a bio that is neither cloned nor split; 0: none, its bios have ties */
	__u64 queue_ns;		/* of that */
	__u64 issue_ns;		/* of that; 0: not issued, or merged with others */
	__u32 ended;		/* paths that wait for its completion */
	__u32 has_ended;	/* the whole bio */
};

/* An entry stays for the next direct I/O with this kiocb, whose address is used again: that is cheaper
 * than to remove and insert it. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(key_size, 8);
	__uint(value_size, sizeof(struct direct));
	__uint(max_entries, 1 << 15);
} directs SEC(".maps");

/* A bio in flight, by the address of its segments, or its own if it has none. */
struct tie {
	struct io_path path;
	__u64 bio;		/* addresses */
	__u64 iocb;		/* 0: no direct I/O */
	__u64 passed_on;	/* the bio of the file below that has the same segments; 0: none */
	__u64 queue_ns;
	__u64 sector;
	__u32 bytes;
	__u32 done;
	__u32 device;
	__u32 has_no_requests;	/* its device has none: dm, md */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(key_size, 8);
	__uint(value_size, sizeof(struct tie));
	__uint(max_entries, 1 << 15);
} ties SEC(".maps");

/* A request at its device, by its address. */
struct issued {
	__u64 issue_ns;
	__u64 number;		/* 0: no part of it is complete */
	__u16 part;
	__u16 parts;
	__u32 spare;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(key_size, 8);
	__uint(value_size, sizeof(struct issued));
	__uint(max_entries, 1 << 14);
} issues SEC(".maps");

/* The paths that wait for the completion of their direct I/O. */
struct ended_key {
	__u64 parent;
	__u64 at;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(key_size, sizeof(struct ended_key));
	__uint(value_size, sizeof(struct io_path));
	__uint(max_entries, 1 << 14);
} ended SEC(".maps");

/* Where a request of io_uring is from. */
struct origin {
	__u64 user_data;	/* or the number of the request of a virtual disk */
	__u64 submit_ns;
	__u64 disk_key;		/* as in io_path */
	__u64 received_ns;	/* by the tapdisk */
};

/* What a task does. */
struct doing {
	__u64 iocb;		/* the direct I/O that it submits; 0: none */
	__u64 request;		/* the last request of io_uring that it submitted */
	struct origin origin;	/* of that */
	__u64 call_ns;		/* its system call or page fault began; 0: it makes none */
	__u64 turn_ns;		/* the call submitted the previous direct I/O */
	__u64 faulted;		/* the inode of the file that it reads by a page fault; 0: none */
	__u64 has_sent;		/* a bio, in this call */
	__u64 live;		/* the value of the state then */
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct doing);
} tasks SEC(".maps");

/* Requests of io_uring that a worker executes, by their address. */
struct punted {
	struct origin origin;	/* with the time of the system call */
	__u64 comm[2];		/* of the task that submitted it */
	__u64 tid;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(key_size, 8);
	__uint(value_size, sizeof(struct punted));
	__uint(max_entries, 1 << 13);
} punted SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(key_size, 4);
	__uint(value_size, 8);
	__uint(max_entries, 1);
} numbers SEC(".maps");

/* What add_tie and step_to_part make, each called by one program. These are too large for the stack of
 * kernels before 6.13, of which all calls have a part. One program does not run twice at a time on a
 * processor: the kernel skips and counts the second run. */
struct made {
	struct tie tie;
	struct io_path path;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(key_size, 4);
	__uint(value_size, sizeof(struct made));
	__uint(max_entries, 1);
} made SEC(".maps");

static __always_inline struct made *made_here(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&made, &zero);
}

static __always_inline __u64 new_number(void)
{
	__u32 zero = 0;
	__u64 *last = bpf_map_lookup_elem(&numbers, &zero);

	return last ? __sync_fetch_and_add(last, 1) + 1 : 0;
}

static __always_inline struct doing *doing_now(__u64 flags)
{
	struct doing *doing = bpf_task_storage_get(&tasks, bpf_get_current_task_btf(), NULL, flags);

	/* What it did when the programs were attached the last time has ended unseen. */
	if (doing && doing->live != state.live)
		*doing = (struct doing){ .live = state.live };
	return doing;
}

/* ---- The task ------------------------------------------------------------------------------ */

static __always_inline struct doing *begin_call(void)
{
	struct doing *doing = doing_now(BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!doing)
		return NULL;
	doing->call_ns = bpf_ktime_get_ns();
	doing->turn_ns = doing->call_ns;
	doing->has_sent = false;
	doing->faulted = 0;
	return doing;
}

SEC("tp_btf/sys_enter")
int on_call(void)
{
	begin_call();
	return 0;
}

SEC("tp_btf/mm_filemap_fault")
int on_fault(__u64 *ctx)
{
	struct address_space *mapping = (struct address_space *)ctx[0];
	struct doing *doing = begin_call();

	if (doing)
		doing->faulted = number_of(mapping->host);
	return 0;
}

static __always_inline struct origin origin_by(struct io_kiocb *request)
{
	struct origin origin = { .user_data = request->cqe.user_data };
	struct request_mark mark;

	if (has_mark(&mark, origin.user_data)) {
		origin.user_data = mark.number;
		origin.disk_key = mark.disk_key;
		origin.received_ns = mark.received_ns;
	}
	origin.submit_ns = bpf_ktime_get_ns();
	return origin;
}

SEC("tp_btf/io_uring_submit_req")
int on_uring_submit(__u64 *ctx)
{
	struct io_kiocb *request = (struct io_kiocb *)ctx[0];
	struct doing *doing = doing_now(BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!doing)
		return 0;
	doing->request = number_of(request);
	doing->origin = origin_by(request);
	return 0;
}

SEC("tp_btf/io_uring_queue_async_work")
int on_uring_punt(__u64 *ctx)
{
	struct io_kiocb *request = (struct io_kiocb *)ctx[0];
	__u64 address = number_of(request);
	struct doing *doing = doing_now(0);
	struct punted later = {};

	later.tid = (__u32)bpf_get_current_pid_tgid();
	bpf_get_current_comm(later.comm, sizeof(later.comm));
	if (doing && doing->request == address) {
		later.origin = doing->origin;
		if (doing->call_ns)
			later.origin.submit_ns = doing->call_ns;
	} else {
		/* A device without room for it has rejected it; the task submits it again. */
		later.origin = origin_by(request);
		later.origin.submit_ns = 0;
	}
	bpf_map_update_elem(&punted, &address, &later, 0);
	return 0;
}

/* The cgroup that a bio is charged to, if a query reads it. */
static __always_inline __u64 charged_cgroup(struct bio *bio)
{
	return READS_DISK || READS(COLUMN_CGROUP) ? cgroup_of(bio) : 0;
}

static __always_inline void by_task(struct io_path *path)
{
	if (READS_DISK || READS(COLUMN_PID) || READS(COLUMN_TID)) {
		__u64 id = bpf_get_current_pid_tgid();

		path->pid = id >> 32;
		path->tid = id;
	}
	if (READS(COLUMN_COMM))
		bpf_get_current_comm(path->comm, sizeof(path->comm));
	if (READS_DISK)
		path->by_kernel = !!(bpf_get_current_task_btf()->flags & PF_KTHREAD);
	path->cgroup = 0;
	if (config.unified && (READS_DISK || READS(COLUMN_CGROUP)))
		path->cgroup = bpf_get_current_cgroup_id();
	path->app_wait_ns = UNKNOWN;
	path->file_ns = UNKNOWN;
	path->completion_ns = UNKNOWN;
	path->offset = UNKNOWN;
	path->inode = UNKNOWN;
	path->user_data = UNKNOWN;
	path->vdisk_wait_ns = UNKNOWN;
	path->disk_key = 0;
}

/* The path begins with a request of io_uring; `submit_ns` is 0 if its system call was not seen. */
static __always_inline void of_origin(struct io_path *path, const struct origin *origin,
				      __u64 submit_ns, __u64 begin_ns)
{
	path->user_data = origin->user_data;
	path->latency_ns = submit_ns ? submit_ns : begin_ns;
	if (submit_ns)
		path->app_wait_ns = begin_ns - submit_ns;
	path->disk_key = origin->disk_key;
	if (!origin->disk_key || origin->received_ns > path->latency_ns)
		return;
	path->vdisk_wait_ns = path->latency_ns - origin->received_ns;
	path->latency_ns = origin->received_ns;
}

/* Whether the request with this kiocb is one of io_uring. `begin_ns`, now, becomes the time of its
 * turn. */
static __always_inline bool is_of_uring(struct io_path *path, __u64 iocb, struct doing *doing,
					__u64 *begin_ns)
{
	struct punted *later;

	/* A request of io_uring begins with its kiocb. */
	if (doing && iocb && doing->request == iocb) {
		*begin_ns = doing->origin.submit_ns;
		of_origin(path, &doing->origin, doing->call_ns ? doing->call_ns : *begin_ns,
			  *begin_ns);
		return true;
	}
	if (!(bpf_get_current_task_btf()->flags & PF_IO_WORKER))
		return false;
	later = bpf_map_lookup_elem(&punted, &iocb);
	if (!later)
		return false;
	path->tid = later->tid;
	path->comm[0] = later->comm[0];
	path->comm[1] = later->comm[1];
	of_origin(path, &later->origin, later->origin.submit_ns, *begin_ns);
	return true;
}

static __always_inline void of_file(struct io_path *path, struct inode *inode, struct dentry *dentry)
{
	path->inode = inode->i_ino;
	path->fs = inode->i_sb->s_magic;
	if (READS(COLUMN_PATH) || READS_DISK)
		path->path = path_of(inode, dentry);
}

/* ---- Direct I/O ---------------------------------------------------------------------------- */

SUBPROGRAM int add_direct(__u64 iocb)
{
	struct direct none = {};

	return bpf_map_update_elem(&directs, &iocb, &none, 0);
}

static __always_inline struct direct *new_direct(__u64 iocb)
{
	struct direct *direct = bpf_map_lookup_elem(&directs, &iocb);

	if (!direct && !add_direct(iocb))
		direct = bpf_map_lookup_elem(&directs, &iocb);
	return direct;
}

SEC("tp_btf/iomap_dio_rw_begin")
int on_direct_begin(__u64 *ctx)
{
	struct kiocb *kiocb = (struct kiocb *)ctx[0];
	struct file *file = kiocb->ki_filp;
	struct inode *inode = file->f_inode;
	struct doing *doing = doing_now(BPF_LOCAL_STORAGE_GET_F_CREATE);
	__u64 iocb = number_of(kiocb), submit_ns = 0, begin_ns;
	struct direct *direct = new_direct(iocb);
	struct io_path *path;

	if (!doing || !direct) {
		count(TABLE_FULL);
		return 0;
	}
	path = &direct->path;
	by_task(path);
	of_file(path, inode, dentry_of_file(file));
	path->offset = kiocb->ki_pos;
	path->flags = FLAG_DIRECT;
	if (kiocb->ki_flags & (IOCB_DSYNC | IOCB_SYNC))
		path->flags |= FLAG_SYNC;
	path->parent = new_number();
	begin_ns = bpf_ktime_get_ns();
	if (!is_of_uring(path, iocb, doing, &begin_ns)) {
		/* A worker of io_uring makes no system call. */
		if (!(bpf_get_current_task_btf()->flags & PF_IO_WORKER))
			submit_ns = doing->call_ns;
		if (submit_ns)
			begin_ns = doing->turn_ns;
		path->latency_ns = submit_ns ? submit_ns : begin_ns;
		if (submit_ns)
			path->app_wait_ns = begin_ns - submit_ns;
	}
	direct->begin_ns = begin_ns;
	direct->whole = 0;
	direct->issue_ns = 0;
	direct->ended = 0;
	direct->has_ended = false;
	direct->inode = number_of(inode);
	direct->sb = number_of(inode->i_sb);
	doing->iocb = iocb;
	return 0;
}

static __always_inline void has_submitted(struct doing *doing)
{
	doing->iocb = 0;
	doing->turn_ns = bpf_ktime_get_ns();
}

SEC("tp_btf/iomap_dio_rw_queued")
int on_direct_queued(void)
{
	struct doing *doing = doing_now(0);

	if (doing)
		has_submitted(doing);
	return 0;
}

SUBPROGRAM int finish(struct io_path *path, __u64 now)
{
	path->event.ts_ns = now;
	path->latency_ns = now - path->latency_ns;
	/* An image is the whole disk. */
	path->vsector = path->disk_key && path->offset != UNKNOWN ? path->offset >> 9 : UNKNOWN;
	if (path->cause == NO_FILE_SYSTEM)
		path->offset = UNKNOWN;
	if (path->cause)
		count(path->cause & CAUSE_MASK);
	EMIT(*path);
	return 0;
}

/* Emits the paths of a completed direct I/O: each step is one. */
struct completion {
	__u64 parent;
	__u64 now;
};

SUBPROGRAM long step_to_ended(__u32 step, struct completion *c)
{
	struct ended_key key = { .parent = c->parent, .at = step };
	struct io_path *path = bpf_map_lookup_elem(&ended, &key);

	if (!path)
		return 0;
	path->completion_ns = c->now - path->event.ts_ns;
	finish(path, c->now);
	bpf_map_delete_elem(&ended, &key);
	return 0;
}

SEC("tp_btf/iomap_dio_complete")
int on_direct_complete(__u64 *ctx)
{
	__u64 iocb = number_of((void *)ctx[0]);
	struct direct *direct = bpf_map_lookup_elem(&directs, &iocb);
	struct doing *doing = doing_now(0);
	struct completion completion = {};

	if (doing && doing->iocb == iocb)
		has_submitted(doing);
	if (!direct || !direct->sb)
		return 0;
	completion.now = bpf_ktime_get_ns();
	if (direct->has_ended) {
		direct->path.completion_ns = completion.now - direct->path.event.ts_ns;
		finish(&direct->path, completion.now);
	}
	if (direct->ended) {
		completion.parent = direct->path.parent;
		bpf_loop(direct->ended, step_to_ended, &completion, 0);
	}
	direct->sb = 0;
	direct->path.parent = 0;
	return 0;
}

/* The direct I/O that a bio belongs to, and its offset in that, or UNKNOWN. */
static __always_inline struct direct *direct_of(struct bio *bio, struct super_block *sb,
						struct doing *doing, struct tie *tie)
{
	struct iomap_dio *dio = CAST(iomap_dio, bio->bi_private);
	struct direct *direct = NULL;
	__u64 own;
	__u64 iocb = number_of(dio->iocb), sent = dio->size;

	tie->path.offset = UNKNOWN;
	if (iocb)
		direct = bpf_map_lookup_elem(&directs, &iocb);
	if (direct && direct->sb == number_of(sb)) {
		tie->iocb = iocb;
		/* A bio that waited for its cgroup is queued by a worker, perhaps after later bios. */
		if ((doing && doing->iocb == iocb) || sent == bio->bi_iter.bi_size)
			tie->path.offset = direct->path.offset + sent - bio->bi_iter.bi_size;
		return direct;
	}
	if (!doing || !doing->iocb || sb->s_magic != BTRFS_SUPER_MAGIC)
		return NULL;
	/* btrfs puts something else into bi_private. */
	iocb = doing->iocb;
	direct = bpf_map_lookup_elem(&directs, &iocb);
	if (!direct || direct->sb != number_of(sb))
		return NULL;
	tie->iocb = iocb;
	if (!bio->bi_vcnt || !core_field_exists(((struct btrfs_bio *)0)->file_offset))
		return direct;
	/* Types of a module can be read, but no pointer can have them. */
	own = number_of(bio) - OFFSET_OF(btrfs_bio, bio);
	if (LOAD(btrfs_bio, own, inode) + OFFSET_OF(btrfs_inode, vfs_inode) != direct->inode) {
		tie->path.cause = AMBIGUOUS;
		tie->iocb = 0;
		return NULL;
	}
	tie->path.offset = LOAD(btrfs_bio, own, file_offset);
	return direct;
}

/* ---- Bios ---------------------------------------------------------------------------------- */

static __always_inline __u64 key_of_bio(struct bio *bio)
{
	__u64 segments = number_of(bio->bi_io_vec);

	return segments ? segments : number_of(bio);
}

/*
 * The tie of a bio, or of that of which it is a clone; `key` becomes its key.
 *
 * A loop device with direct I/O passes the segments of a bio on to its file: the bio of that has its
 * own address as its key. The clones of both have the segments, and the device of theirs.
 */
static __always_inline struct tie *tie_of(struct bio *bio, __u64 *key)
{
	struct tie *tie;

	*key = key_of_bio(bio);
	tie = bpf_map_lookup_elem(&ties, key);
	if (!bio->bi_vcnt) {
		if (!tie || !tie->passed_on || tie->device == bio->bi_bdev->bd_dev)
			return tie;
		*key = tie->passed_on;
		return bpf_map_lookup_elem(&ties, key);
	}
	if (tie && tie->bio == number_of(bio))
		return tie;
	*key = number_of(bio);
	tie = bpf_map_lookup_elem(&ties, key);
	return tie && tie->bio == *key ? tie : NULL;
}

/* The key of the tie that `bio` needs; 0 if it is a clone of a bio that has one. */
static __always_inline __u64 new_key(struct bio *bio, __u32 device)
{
	__u64 key = key_of_bio(bio), own = number_of(bio);
	struct tie *other = bpf_map_lookup_elem(&ties, &key);

	if (!other)
		return key;
	if (!bio->bi_vcnt && bio->bi_io_vec)
		return 0;
	if (other->bio == own || other->device == device)
		return key;
	other->passed_on = own;
	return own;
}

/* The first bio of a system call or page fault began with that. */
static __always_inline void of_call(struct tie *tie, struct doing *doing)
{
	tie->path.latency_ns = tie->queue_ns;
	if (!doing || !doing->call_ns || doing->has_sent)
		return;
	doing->has_sent = true;
	tie->path.latency_ns = doing->call_ns;
	tie->path.app_wait_ns = 0;
	tie->path.file_ns = tie->queue_ns - doing->call_ns;
}

static __always_inline void of_direct(struct tie *tie, const struct direct *direct, struct doing *doing)
{
	__u64 offset = tie->path.offset;

	tie->path = direct->path;
	tie->path.offset = offset;
	/* Another task queues it: it waited for its cgroup (blk-throttle). */
	if (direct->path.fs != BTRFS_SUPER_MAGIC && (!doing || doing->iocb != tie->iocb)) {
		tie->path.file_ns = 0;
		tie->queue_ns = direct->begin_ns;
	} else {
		tie->path.file_ns = tie->queue_ns - direct->begin_ns;
	}
}

static __always_inline void of_pages(struct tie *tie, struct bio *bio, struct cached cached,
				     struct doing *doing)
{
	of_file(&tie->path, cached.inode, dentry_of(cached.inode));
	tie->path.offset = cached.offset;
	if (cached.has_gaps)
		tie->path.flags |= FLAG_GAPS;
	if (tie->path.op == 'w')
		tie->path.flags |= FLAG_WRITE_BACK;
	if (tie->path.op == 'w' && HAS_FLAG(bio->bi_opf, __REQ_SYNC))
		tie->path.flags |= FLAG_SYNC;
	if (HAS_FLAG(bio->bi_opf, __REQ_RAHEAD))
		tie->path.flags |= FLAG_READ_AHEAD;
	if (tie->path.op == 'r' && doing && doing->faulted == number_of(cached.inode))
		tie->path.flags |= FLAG_MMAP;
}

static __always_inline __u64 iocb_of(__u64 dio)
{
	return dio ? number_of(CAST(blkdev_dio, dio)->iocb) : 0;
}

/*
 * Whether the bio belongs to a direct I/O of its block device that io_uring submitted. The first bio
 * is a part of the I/O, further ones point to it.
 */
static __always_inline bool is_of_device(struct tie *tie, struct bio *bio, struct doing *doing)
{
	struct block_device___disk *device = (struct block_device___disk *)bio->bi_bdev;
	__u64 begin_ns = tie->queue_ns;

	if (!core_field_exists(((struct blkdev_dio *)0)->iocb))
		return false;
	if (!is_of_uring(&tie->path, iocb_of(number_of(bio) - OFFSET_OF(blkdev_dio, bio)), doing,
			 &begin_ns) &&
	    !is_of_uring(&tie->path, iocb_of(number_of(bio->bi_private)), doing, &begin_ns))
		return false;
	tie->path.file_ns = tie->queue_ns - begin_ns;
	tie->path.offset = (tie->sector - device->bd_start_sect) << 9;
	return true;
}

SUBPROGRAM int tie_bio(struct bio *bio, struct tie *tie)
{
	struct block_device *device = bio->bi_bdev;
	struct super_block *sb = CAST(super_block, device->bd_holder);
	struct doing *doing = doing_now(0);
	struct direct *direct = NULL;
	struct cached cached = {};
	bool is_own;

	by_task(&tie->path);
	if (!is_of_file_system(device)) {
		tie->path.cause = NO_FILE_SYSTEM;
		if (!tie->bytes || !is_of_device(tie, bio, doing))
			of_call(tie, doing);
		return 0;
	}
	tie->path.fs = sb->s_magic;
	if (!bio->bi_io_vec || !tie->bytes || (tie->path.op != 'r' && tie->path.op != 'w')) {
		tie->path.cause = NO_DATA;
		of_call(tie, doing);
		return 0;
	}
	cached = cached_by(bio);
	is_own = cached.inode && cached.inode->i_sb == sb;
	if (!is_own)
		direct = direct_of(bio, sb, doing, tie);
	if (direct) {
		of_direct(tie, direct, doing);
		return 0;
	}
	of_call(tie, doing);
	if (is_own && !has_metadata(cached.inode))
		of_pages(tie, bio, cached, doing);
	else if (cached.inode || HAS_FLAG(bio->bi_opf, __REQ_META))
		tie->path.cause = METADATA;
	else if (!tie->path.cause)
		tie->path.cause = NO_FILE;
	return 0;
}

/* True if a bio of one segment becomes one request of the device, whole: no clone of it exists. */
static __always_inline bool stays_whole(struct bio *bio, struct block_device *device)
{
	struct gendisk *disk = ((struct block_device___disk *)device)->bd_disk;
	struct request_queue *queue = disk->queue;
	__u32 bytes = bio->bi_iter.bi_size;

	/* dm clones bios, and its requests clone those of others. */
	return bio->bi_vcnt == 1 && bytes && queue->mq_ops &&
	       !(disk->disk_name[0] == 'd' && disk->disk_name[1] == 'm') &&
	       bytes >> 9 <= queue->limits.max_sectors &&
	       bytes <= queue->limits.max_segment_size && !queue->limits.chunk_sectors;
}

/* The direct I/O to which a bio points. */
static __always_inline struct direct *direct_by(struct bio *bio)
{
	struct iomap_dio *dio = CAST(iomap_dio, bio->bi_private);
	__u64 iocb = bio->bi_private ? number_of(dio->iocb) : 0;

	return iocb ? bpf_map_lookup_elem(&directs, &iocb) : NULL;
}

/* The direct I/O whose whole bio this is. */
static __always_inline struct direct *direct_with(struct bio *bio)
{
	struct direct *direct = bio->bi_vcnt == 1 ? direct_by(bio) : NULL;

	return direct && direct->whole == number_of(bio) ? direct : NULL;
}

/*
 * The first bio of a direct I/O, if it stays whole, needs no tie: the direct I/O has its path, which
 * is completed where it is.
 */
static __always_inline bool is_whole(struct bio *bio, struct block_device *device, char op)
{
	struct direct *direct = stays_whole(bio, device) ? direct_by(bio) : NULL;
	struct doing *doing;
	struct io_path *path;
	__u64 cgroup, iocb, sent;

	if (!direct || direct->whole || direct->sb != number_of(device->bd_holder))
		return false;
	doing = doing_now(0);
	iocb = number_of(CAST(iomap_dio, bio->bi_private)->iocb);
	sent = CAST(iomap_dio, bio->bi_private)->size;
	path = &direct->path;
	/* A bio that waited for its cgroup is queued by a worker, perhaps after later bios. */
	if (!doing || doing->iocb != iocb || sent != bio->bi_iter.bi_size)
		return false;
	direct->whole = number_of(bio);
	direct->queue_ns = bpf_ktime_get_ns();
	path->file_ns = direct->queue_ns - direct->begin_ns;
	path->op = op;
	path->sector = bio->bi_iter.bi_sector;
	path->bytes = bio->bi_iter.bi_size;
	path->device = device->bd_dev;
	cgroup = charged_cgroup(bio);
	if (cgroup > 1)
		path->cgroup = cgroup;
	return true;
}

SUBPROGRAM int add_tie(struct bio *bio, char op)
{
	struct block_device *device = bio->bi_bdev;
	__u64 key = new_key(bio, device->bd_dev), cgroup;
	struct made *made = made_here();
	struct tie *tie;

	if (!key || !made)
		return 0;
	tie = &made->tie;
	__builtin_memset(tie, 0, sizeof(*tie));
	tie->bio = number_of(bio);
	tie->queue_ns = bpf_ktime_get_ns();
	tie->sector = bio->bi_iter.bi_sector;
	tie->bytes = bio->bi_iter.bi_size;
	tie->device = device->bd_dev;
	tie->has_no_requests = !((struct block_device___disk *)device)->bd_disk->queue->mq_ops;
	tie->path.op = op;
	tie_bio(bio, tie);
	tie->path.op = op == 'w' && !tie->bytes ? 'f' : op;
	/* Without the io controller the bio belongs to the root cgroup (1). */
	cgroup = charged_cgroup(bio);
	if (cgroup > 1)
		tie->path.cgroup = cgroup;
	if (!tie->path.parent)
		tie->path.parent = new_number();
	if (bpf_map_update_elem(&ties, &key, tie, 0))
		count(TABLE_FULL);
	return 0;
}

SEC("tp_btf/block_bio_queue")
int on_bio_queue(__u64 *ctx)
{
	struct bio *bio = CAST(bio, ctx[0]);
	char op = letter_of(bio->bi_opf);

	if (op && state.live && !is_whole(bio, bio->bi_bdev, op))
		add_tie(bio, op);
	return 0;
}

/* A bio of a device without requests is a request; other bios that end here were never issued. */
SEC("tp_btf/block_bio_complete")
int on_bio_complete(__u64 *ctx)
{
	struct bio *bio = CAST(bio, ctx[1]);
	__u64 key, now = bpf_ktime_get_ns();
	struct tie *tie = tie_of(bio, &key);
	struct io_path *path;

	if (!tie || tie->bio != number_of(bio))
		return 0;
	if (tie->has_no_requests) {
		path = &tie->path;
		path->block_wait_ns = 0;
		path->device_ns = now - tie->queue_ns;
		path->sector = tie->sector;
		path->bytes = tie->bytes;
		path->device = tie->device;
		path->request = new_number();
		path->parts = 1;
		path->status = bio->bi_status;
		finish(path, now);
	}
	bpf_map_delete_elem(&ties, &key);
	return 0;
}

/* ---- Requests ------------------------------------------------------------------------------ */

SEC("tp_btf/block_rq_issue")
int on_request_issue(__u64 *ctx)
{
	struct request *request = (struct request *)ctx[0];
	__u64 address = number_of(request);
	struct issued issued = {};

	struct direct *direct;
	struct bio *bio;

	if (!state.live || !letter_of(request->cmd_flags))
		return 0;
	issued.issue_ns = bpf_ktime_get_ns();
	bio = request->bio;
	direct = bio && !bio->bi_next ? direct_with(bio) : NULL;
	if (direct) {
		if (!direct->issue_ns)
			direct->issue_ns = issued.issue_ns;
		return 0;
	}
	/* One that is issued again keeps its first time. */
	bpf_map_update_elem(&issues, &address, &issued, BPF_NOEXIST);
	return 0;
}

#define BIOS_MAX 2048

/* Counts the bios of a request: each step is one. */
struct bio_count {
	__u64 bio;
	__u64 bios;
};

SUBPROGRAM long step_to_next(__u32 step __attribute__((unused)), struct bio_count *c)
{
	if (!c->bio)
		return 1;
	c->bios++;
	c->bio = number_of(CAST(bio, c->bio)->bi_next);
	return 0;
}

/* The bios of a request that complete: each step is one. */
struct path_walk {
	__u64 bio;
	__u64 now;
	__u64 issue_ns;		/* 0: unknown */
	__u64 request;		/* its number */
	__u32 bytes;		/* that are left */
	__u16 part;
	__u16 parts;
	__u16 status;
	char op;
	__u8 has_metadata;
};

/* Where the data of a bio are in the file: the bio with the tie, a part of that, or a clone. */
static __always_inline __u64 offset_of(struct bio *bio, const struct tie *tie, __u32 device)
{
	__u64 sector = bio->bi_iter.bi_sector;
	struct cached cached;

	if (tie->path.offset == UNKNOWN || tie->bytes == bio->bi_iter.bi_size)
		return tie->path.offset;
	if (device == tie->device && sector >= tie->sector && sector < tie->sector + (tie->bytes >> 9))
		return tie->path.offset + ((sector - tie->sector) << 9);
	cached = cached_by(bio);
	if (tie->path.flags & FLAG_DIRECT || !cached.inode)
		return UNKNOWN;
	return cached.offset;
}

/* A part of a bio with a tie is complete: the tie is removed with the last one. */
static __always_inline void release(__u64 key, struct tie *tie, struct bio *bio, __u32 device,
				    __u32 bytes)
{
	__u64 sector = bio->bi_iter.bi_sector;

	if (tie->has_no_requests || device != tie->device || sector < tie->sector ||
	    sector > tie->sector + (tie->bytes >> 9))
		return;
	if (__sync_fetch_and_add(&tie->done, bytes) + bytes >= tie->bytes)
		bpf_map_delete_elem(&ties, &key);
}

/* Keeps the path until its direct I/O completes; false if it has none. */
static __always_inline bool waits(struct io_path *path, __u64 iocb)
{
	struct direct *direct = iocb ? bpf_map_lookup_elem(&directs, &iocb) : NULL;
	struct ended_key key = {};

	if (!direct || direct->path.parent != path->parent)
		return false;
	key.parent = path->parent;
	key.at = __sync_fetch_and_add(&direct->ended, 1);
	return !bpf_map_update_elem(&ended, &key, path, 0);
}

/* The whole bio of a direct I/O is complete in this request. */
static __always_inline void end_whole(struct direct *direct, __u64 now, __u64 issue_ns)
{
	struct io_path *path = &direct->path;

	path->event.ts_ns = now;
	path->block_wait_ns = issue_ns ? issue_ns - direct->queue_ns : UNKNOWN;
	path->device_ns = now - (issue_ns ? issue_ns : direct->queue_ns);
	direct->has_ended = true;
}

SUBPROGRAM long step_to_part(__u32 step __attribute__((unused)), struct path_walk *w)
{
	struct bio *bio = CAST(bio, w->bio);
	__u32 bytes = bio->bi_iter.bi_size, device = bio->bi_bdev->bd_dev;
	struct made *made = made_here();
	struct io_path *path;
	struct direct *direct;
	__u64 key, iocb = 0;
	struct tie *tie;

	if (!made || !w->bio || (!w->bytes && w->op != 'f'))
		return 1;
	if (bytes > w->bytes)
		bytes = w->bytes;
	w->bytes -= bytes;
	direct = direct_with(bio);
	if (direct) {
		if (bytes < bio->bi_iter.bi_size)
			return 1;
		direct->path.request = w->request;
		direct->path.part = w->part++;
		direct->path.parts = w->parts;
		direct->path.status = w->status;
		end_whole(direct, w->now, w->issue_ns);
		w->bio = number_of(bio->bi_next);
		return 0;
	}
	path = &made->path;
	tie = tie_of(bio, &key);
	if (tie) {
		*path = tie->path;
		path->offset = offset_of(bio, tie, device);
		if (w->issue_ns) {
			path->block_wait_ns = w->issue_ns - tie->queue_ns;
			path->device_ns = w->now - w->issue_ns;
		} else {
			path->block_wait_ns = UNKNOWN;
			path->device_ns = w->now - tie->queue_ns;
		}
		iocb = tie->iocb;
		release(key, tie, bio, device, bytes);
	} else {
		__builtin_memset(path, 0, sizeof(*path));
		path->latency_ns = w->issue_ns ? w->issue_ns : w->now;
		path->app_wait_ns = UNKNOWN;
		path->file_ns = UNKNOWN;
		path->block_wait_ns = UNKNOWN;
		path->device_ns = w->issue_ns ? w->now - w->issue_ns : UNKNOWN;
		path->completion_ns = UNKNOWN;
		path->offset = UNKNOWN;
		path->inode = UNKNOWN;
		path->user_data = UNKNOWN;
		path->vdisk_wait_ns = UNKNOWN;
		path->cause = w->has_metadata ? METADATA : NOT_SEEN;
	}
	path->event.ts_ns = w->now;
	path->op = w->op;
	path->sector = w->op == 'f' ? UNKNOWN : bio->bi_iter.bi_sector;
	path->bytes = bytes;
	path->device = device;
	path->request = w->request;
	path->part = w->part++;
	path->parts = w->parts;
	path->status = w->status;
	w->bio = number_of(bio->bi_next);
	if (!waits(path, iocb))
		finish(path, w->now);
	return w->op == 'f';
}

/* A request with several bios, or one whose bio may have clones. */
SUBPROGRAM int end_request(struct request *request, __u32 ended, __u32 status)
{
	__u32 bytes = request->__data_len;
	__u64 address = number_of(request);
	struct issued *issued = bpf_map_lookup_elem(&issues, &address);
	struct bio *bio = request->bio;
	struct bio_count all = {};
	struct path_walk walk = {
		.bio = number_of(bio),
		.now = bpf_ktime_get_ns(),
		.bytes = ended,
		.status = status,
		.op = letter_of(request->cmd_flags),
		.has_metadata = HAS_FLAG(request->cmd_flags, __REQ_META),
		.parts = 1,
	};

	if (!bytes) {
		/* A flush without data, or the last step of one whose data were complete before. */
		if (bio->bi_vcnt)
			return 0;
		walk.op = 'f';
	}
	if (issued) {
		walk.issue_ns = issued->issue_ns;
		walk.request = issued->number;
		walk.part = issued->part;
		walk.parts = issued->parts;
	}
	if (!walk.request) {
		walk.request = new_number();
		walk.parts = 1;
		if (bio->bi_next) {
			all.bio = walk.bio;
			bpf_loop(BIOS_MAX, step_to_next, &all, 0);
			walk.parts = all.bios;
		}
	}
	if (!issued || walk.bytes >= bytes) {
		bpf_map_delete_elem(&issues, &address);
		issued = NULL;
	}
	bpf_loop(BIOS_MAX, step_to_part, &walk, 0);
	if (issued) {
		issued->number = walk.request;
		issued->part = walk.part;
		issued->parts = walk.parts;
	}
	return 0;
}

SEC("tp_btf/block_rq_complete")
int on_request_complete(__u64 *ctx)
{
	struct request *request = (struct request *)ctx[0];
	__u32 bytes = request->__data_len, ended = ctx[2];
	struct bio *bio = request->bio;
	struct direct *direct;

	if (!state.live || !letter_of(request->cmd_flags) || !bio)
		return 0;
	direct = !bytes || bio->bi_next ? NULL : direct_with(bio);
	if (!direct || (READS_ISSUE && !direct->issue_ns))
		return end_request(request, ended, (__u8)ctx[1]);
	/* One that completes in several steps has one row. */
	if (ended < bytes)
		return 0;
	direct->path.request = READS(COLUMN_REQUEST) ? new_number() : 0;
	direct->path.part = 0;
	direct->path.parts = 1;
	direct->path.status = (__u8)ctx[1];
	end_whole(direct, bpf_ktime_get_ns(), direct->issue_ns);
	return 0;
}

// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/*
 * Stream `PageCache`: how the page cache served the accesses to files.
 *
 * The programs count in cells, one for each file, operation and process. User space runs flush() several
 * times a second, which emits one event for each cell that counted something.
 *
 *  - Reads: a call accesses the pages from its position to its end or the end of the file, which
 *    mm_filemap_get_pages reports before the first are copied; it reports the remaining ones again after
 *    each batch. A page that the call's own thread adds to the cache before that is a miss if the call
 *    needs it, otherwise it is read ahead: page_cache_sync_ra and page_cache_async_ra have the range
 *    that the call needs.
 *  - Page faults of mapped files: each accesses one page.
 *  - Writes: ext4 and xfs report the range. Pages that are added without a read are misses.
 *  - Hits are accesses without misses. A call may miss now and access later (io_uring); its misses wait
 *    in the cell.
 *
 * Compile with `cargo xtask bpf`.
 */
#include "stream.bpf.h"
#include "file.bpf.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct task_io_accounting {
	__u64 syscr;
};

struct task_struct {
	__u32 flags;
	int pid;
	int tgid;
	unsigned long min_flt;
	unsigned long maj_flt;
	struct task_io_accounting ioac;
	struct task_struct *group_leader;
	char comm[16];
};

struct inode___size {
	__s64 i_size;
};

struct folio___large {
	unsigned long _flags_1;
};

struct kiocb {
	struct file *ki_filp;
	__s64 ki_pos;
	int ki_flags;
};

struct iov_iter {
	unsigned long count;
};

enum pageflags {
	PG_head,
};

#pragma clang attribute pop

#define NUMBER_OF(type, enumerator)                                                                \
	__builtin_preserve_enum_value(*(typeof(enum type) *)enumerator, 1)

/* include/linux/sched.h, include/uapi/linux/magic.h */
#define PF_KTHREAD 0x00200000
#define EXT4_SUPER_MAGIC 0xEF53
#define XFS_SUPER_MAGIC 0x58465342

/* Positions in the table of columns. */
#define COLUMN_PATH 2

/* Positions in the list of counters. */
#define TABLE_FULL 0

#define UNKNOWN_PAGES (~0U)

struct page_counts {
	struct event event;
	__u64 inode;
	__u64 path;		/* key; 0: unknown */
	__u64 bytes[4];		/* of the pages below */
	__u64 cgroup;
	__u64 comm[2];
	__u32 hits;		/* UNKNOWN_PAGES: accesses were not reported */
	__u32 misses;
	__u32 readahead;
	__u32 dirtied;
	__u32 pid;
	__u32 device;		/* of the file system */
	__u32 fs;		/* its magic number */
	char op;
	__u8 by_kernel;
	__u8 spare[2];
};

/* ---- Cells --------------------------------------------------------------------------------- */

/*
 * What one process did to one file with one operation. A cell without counts since the last flush is
 * retired: no program finds it any more, but one that found it before may still count. The next flush
 * frees it.
 */
struct cell {
	__u64 key;		/* 0: free */
	__u64 match;		/* the key while programs may find it */
	__u64 accesses;		/* pages, since the last flush, as the following */
	__u64 misses;
	__u64 readahead;
	__u64 dirtied;
	__u64 missed;		/* misses whose access is not yet reported */
	__u64 inode;
	__u64 path;
	__u64 cgroup;
	__u64 comm[2];
	__u32 pid;
	__u32 device;
	__u32 fs;
	char op;
	__u8 by_kernel;
	__u8 is_stale;		/* the path is that of an earlier interval */
	__u8 is_measured;	/* accesses are reported */
};

#define CELLS 32768		/* a power of two */
#define CELL_WAYS 8

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(key_size, 4);
	__uint(value_size, sizeof(struct cell));
	__uint(max_entries, CELLS);
} cells SEC(".maps");

/* The number of cells in use, by their slots divided by CELL_GROUP. */
#define CELL_GROUP 128

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(key_size, 4);
	__uint(value_size, 8);
	__uint(max_entries, CELLS / CELL_GROUP);
} used SEC(".maps");

static __always_inline void use_cells(__u32 slot, __s64 cell_count)
{
	__u32 group = slot / CELL_GROUP;
	__u64 *cells_used = bpf_map_lookup_elem(&used, &group);

	if (cells_used)
		__sync_fetch_and_add(cells_used, cell_count);
}

static __always_inline struct cell *page_cell(__u32 slot)
{
	slot &= CELLS - 1;
	return bpf_map_lookup_elem(&cells, &slot);
}

static __always_inline __u64 find_path(struct inode *inode)
{
	if (!(config.columns >> COLUMN_PATH & 1) || !is_regular(inode))
		return 0;
	return path_of(inode, dentry_of(inode));
}

/* Occupies a free cell for `key` and returns its slot, or CELLS. */
SUBPROGRAM __u32 claim(__u64 key, struct inode *inode, __u32 op)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct super_block *sb = inode->i_sb;
	struct cell *cell;
	__u32 way, slot;

	for (way = 0; way < CELL_WAYS; way++) {
		slot = ((key >> 40) + way) & (CELLS - 1);
		cell = page_cell(slot);
		if (!cell || cell->key || __sync_val_compare_and_swap(&cell->key, 0, key))
			continue;
		use_cells(slot, 1);
		cell->missed = 0;
		cell->inode = inode->i_ino;
		cell->path = find_path(inode);
		cell->cgroup = config.unified ? bpf_get_current_cgroup_id() : 0;
		bpf_probe_read_kernel(cell->comm, sizeof(cell->comm), task->group_leader->comm);
		cell->pid = task->tgid;
		cell->device = sb->s_dev;
		cell->fs = sb->s_magic;
		cell->op = op;
		cell->by_kernel = !!(task->flags & PF_KTHREAD);
		cell->is_stale = false;
		cell->is_measured = op != 'w' || sb->s_magic == EXT4_SUPER_MAGIC ||
				    sb->s_magic == XFS_SUPER_MAGIC;
		__sync_lock_test_and_set(&cell->match, key);
		return slot;
	}
	count(TABLE_FULL);
	return CELLS;
}

/* The cell of the current process for a file and an operation; NULL if there is no room. */
static __always_inline struct cell *cell_of(struct inode *inode, char op)
{
	__u64 process = bpf_get_current_task_btf()->tgid;
	__u64 key = mix(mix(inode->i_ino, (__u64)inode->i_sb->s_dev << 8 | op), process);
	struct cell *cell;
	__u32 way, slot;

	if (!state.live)
		return NULL;
	key |= !key;
#pragma unroll
	for (way = 0; way < CELL_WAYS; way++) {
		cell = page_cell((key >> 40) + way);
		if (!cell || cell->match != key)
			continue;
		if (unlikely(cell->is_stale)) {
			cell->is_stale = false;
			cell->path = find_path(inode);
		}
		return cell;
	}
	slot = claim(key, inode, op);
	return slot == CELLS ? NULL : page_cell(slot);
}

#define ADD(cell, field, pages) __sync_fetch_and_add(&(cell)->field, pages)

/* ---- What a thread does -------------------------------------------------------------------- */

struct doing {
	__u64 thread;
	/* The last read of several batches. */
	__u64 read;		/* its mapping */
	__u64 index;
	__u64 last;
	__u64 calls;		/* reads that the thread had finished before */
	/* The lookup that adds pages. */
	__u64 lookup;		/* its mapping; 0: none */
	__u64 added_from;	/* the pages that it may add */
	__u64 added_to;
	__u64 needed_from;	/* those that the call needs */
	__u64 needed_to;
	/* The last page fault. */
	__u64 fault;		/* its mapping */
	__u64 faulted;		/* its page; UNKNOWN before it is reported */
	__u64 faults;		/* page faults that the thread had finished before */
};

/*
 * Threads by their numbers, of which two may have one slot: then the state of the first is lost, which
 * matters only while it is in a call.
 */
#define THREADS 16384		/* a power of two */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(key_size, 4);
	__uint(value_size, sizeof(struct doing));
	__uint(max_entries, THREADS);
} threads SEC(".maps");

/* The current thread, since the programs were attached. */
static __always_inline __u64 thread_now(void)
{
	return bpf_get_current_task_btf()->pid | state.live << 32;
}

/* What the current thread does; NULL if nothing is known. */
static __always_inline struct doing *doing_now(void)
{
	__u64 thread = thread_now();
	__u32 slot = thread & (THREADS - 1);
	struct doing *doing = bpf_map_lookup_elem(&threads, &slot);

	return doing && doing->thread == thread ? doing : NULL;
}

/* The same, with a slot of its own. */
static __always_inline struct doing *doing_from_now(void)
{
	__u64 thread = thread_now();
	__u32 slot = thread & (THREADS - 1);
	struct doing *doing = bpf_map_lookup_elem(&threads, &slot);

	if (doing && doing->thread != thread)
		*doing = (struct doing){ .thread = thread };
	return doing;
}

/* A number that identifies a structure: its distance from a table, which the verifier accepts. */
static __always_inline __u64 name_of(const void *pointer)
{
	__u64 name = (__u64)pointer;
	void *base = &state;

	asm volatile("%0 -= %1" : "+r"(name) : "r"(base));
	return name;
}

static __always_inline __u64 faults_of(const struct task_struct *task)
{
	return task->min_flt + task->maj_flt;
}

/* ---- Reads --------------------------------------------------------------------------------- */

static __always_inline int begin_lookup(struct inode *inode, __u64 index, __u64 needed)
{
	struct doing *doing = doing_from_now();

	if (!doing)
		return 0;
	doing->lookup = name_of(inode);
	doing->added_from = 0;
	doing->added_to = UNKNOWN;
	doing->needed_from = index;
	doing->needed_to = index + needed;
	return 0;
}

SEC("tp_btf/page_cache_sync_ra")
int on_sync_read_ahead(__u64 *ctx)
{
	return begin_lookup((struct inode *)ctx[0], ctx[1], ctx[3]);
}

SEC("tp_btf/page_cache_async_ra")
int on_async_read_ahead(__u64 *ctx)
{
	return begin_lookup((struct inode *)ctx[0], ctx[1], ctx[3]);
}

/* Without one of the above, an application requests it: readahead(2), posix_fadvise(2), madvise(2). */
SEC("tp_btf/page_cache_ra_unbounded")
int on_read_ahead(__u64 *ctx)
{
	struct inode *inode = (struct inode *)ctx[0];
	struct doing *doing = doing_from_now();

	if (!doing || (doing->lookup == name_of(inode) && doing->added_to == UNKNOWN))
		return 0;
	doing->lookup = name_of(inode);
	doing->added_from = ctx[1];
	doing->added_to = ctx[1] + ctx[2];
	doing->needed_from = 0;
	doing->needed_to = 0;
	return 0;
}

SEC("tp_btf/mm_filemap_get_pages")
int on_get_pages(__u64 *ctx)
{
	struct address_space *mapping = (struct address_space *)ctx[0];
	struct inode *inode = CAST(inode, mapping->host);
	__u64 index = ctx[1], last = ctx[2], end, calls;
	struct doing *doing = index == last ? doing_now() : doing_from_now();
	struct cell *cell;

	if (doing) {
		doing->lookup = 0;
		calls = core_field_exists(((struct task_struct *)0)->ioac.syscr) ?
				bpf_get_current_task_btf()->ioac.syscr : 0;
		if (doing->read == name_of(mapping) && doing->last == last &&
		    doing->index < index && doing->calls == calls) {
			doing->index = index;
			return 0;
		}
		if (index != last) {
			doing->read = name_of(mapping);
			doing->calls = calls;
			doing->last = last;
			doing->index = index;
		}
	}
	if (index != last) {
		end = (((struct inode___size *)inode)->i_size - 1) >> PAGE_SHIFT;
		if (last > end)
			last = end;
		if (last < index)
			return 0;
	}
	cell = cell_of(inode, 'r');
	if (cell)
		ADD(cell, accesses, last - index + 1);
	return 0;
}

/* ---- Page faults --------------------------------------------------------------------------- */

/* The kernel may report a fault several times: when it maps neighbours, and when it waits for the page. */
static __always_inline int on_access_by_fault(struct address_space *mapping, __u64 page)
{
	struct doing *doing = doing_from_now();
	struct inode *inode = CAST(inode, mapping->host);
	__u64 faults = faults_of(bpf_get_current_task_btf());
	struct cell *cell;

	if (!doing)
		return 0;
	doing->faulted = page;
	if (doing->fault == name_of(mapping) && doing->faults == faults)
		return 0;
	doing->fault = name_of(mapping);
	doing->faults = faults;
	cell = cell_of(inode, 'm');
	if (cell)
		ADD(cell, accesses, 1);
	return 0;
}

SEC("tp_btf/mm_filemap_map_pages")
int on_map_pages(__u64 *ctx)
{
	return on_access_by_fault((struct address_space *)ctx[0], UNKNOWN);
}

SEC("tp_btf/mm_filemap_fault")
int on_fault(__u64 *ctx)
{
	return on_access_by_fault((struct address_space *)ctx[0], ctx[1]);
}

/* ---- Added pages --------------------------------------------------------------------------- */

static __always_inline __u64 pages_of(struct folio *folio)
{
	unsigned long flags = 0;

	bpf_probe_read_kernel(&flags, sizeof(flags), folio);
	if (!(flags >> NUMBER_OF(pageflags, PG_head) & 1))
		return 1;
	return 1ULL << (((struct folio___large *)folio)->_flags_1 & 0x3f);
}

SEC("tp_btf/mm_filemap_add_to_page_cache")
int on_add(__u64 *ctx)
{
	struct folio *folio = (struct folio *)ctx[0];
	struct address_space *mapping = folio->mapping;
	struct inode *inode = CAST(inode, mapping->host);
	__u64 from = folio->index, pages = pages_of(folio), to = from + pages, needed = pages;
	struct doing *doing = doing_now();
	struct cell *cell;
	char op = 'w';

	if (doing && doing->fault == name_of(mapping) &&
	    doing->faults == faults_of(bpf_get_current_task_btf())) {
		op = 'm';
		needed = doing->faulted >= from && doing->faulted < to;
	} else if (doing && doing->lookup == name_of(mapping->host) &&
		   from >= doing->added_from && from < doing->added_to) {
		op = doing->needed_to ? 'r' : 'a';
		if (from < doing->needed_from)
			from = doing->needed_from;
		if (to > doing->needed_to)
			to = doing->needed_to;
		needed = to > from ? to - from : 0;
	}
	cell = cell_of(inode, op);
	if (!cell)
		return 0;
	if (needed)
		ADD(cell, misses, needed);
	if (pages > needed)
		ADD(cell, readahead, pages - needed);
	return 0;
}

/* ---- Writes -------------------------------------------------------------------------------- */

static __always_inline int on_write(struct inode *inode, __u64 offset, __u64 bytes)
{
	struct cell *cell = bytes ? cell_of(inode, 'w') : NULL;

	if (cell)
		ADD(cell, accesses,
		    ((offset + bytes - 1) >> PAGE_SHIFT) - (offset >> PAGE_SHIFT) + 1);
	return 0;
}

SEC("tp_btf/ext4_write_begin")
int on_ext4_write(__u64 *ctx)
{
	return on_write((struct inode *)ctx[0], ctx[1], (__u32)ctx[2]);
}

SEC("tp_btf/ext4_da_write_begin")
int on_ext4_delayed_write(__u64 *ctx)
{
	return on_write((struct inode *)ctx[0], ctx[1], (__u32)ctx[2]);
}

SEC("tp_btf/xfs_file_buffered_write")
int on_xfs_write(__u64 *ctx)
{
	struct kiocb *kiocb = (struct kiocb *)ctx[0];
	struct iov_iter *iter = (struct iov_iter *)ctx[1];

	return on_write(kiocb->ki_filp->f_inode, kiocb->ki_pos, iter->count);
}

SEC("tp_btf/writeback_dirty_folio")
int on_dirty(__u64 *ctx)
{
	struct folio *folio = (struct folio *)ctx[0];
	struct address_space *mapping = (struct address_space *)ctx[1];
	struct cell *cell = mapping ? cell_of(CAST(inode, mapping->host), 'w') : NULL;

	if (cell)
		ADD(cell, dirtied, pages_of(folio));
	return 0;
}

/* ---- Flush --------------------------------------------------------------------------------- */

struct flushing {
	__u64 since_ns;		/* the start of the previous flush */
	__u32 group;
};

static __always_inline __u64 take(__u64 *pages)
{
	return *pages ? __sync_lock_test_and_set(pages, 0) : 0;
}

static __always_inline void set(struct page_counts *counts, __u32 *pages, __u32 at, __u64 number)
{
	*pages = number;
	counts->bytes[at] = number << PAGE_SHIFT;
}

SUBPROGRAM long flush_cell(__u32 number, struct flushing *flushing)
{
	__u32 slot = flushing->group * CELL_GROUP + number;
	struct page_counts counts = {};
	struct cell *cell = page_cell(slot);
	__u64 accesses, misses, readahead, dirtied, key;

	if (!cell || !cell->key)
		return 0;
	key = cell->key;
	if (cell->match && cell->match != key)
		return 0;
	accesses = take(&cell->accesses);
	misses = take(&cell->misses);
	readahead = take(&cell->readahead);
	dirtied = take(&cell->dirtied);
	if (!(accesses | misses | readahead | dirtied)) {
		if (cell->match) {
			cell->match = 0;
			return 0;
		}
		/* A call that missed did not end. */
		misses = cell->missed;
		__sync_lock_test_and_set(&cell->key, 0);
		use_cells(slot, -1);
		if (!misses)
			return 0;
		accesses = misses;
		cell->missed = 0;
	}
	cell->is_stale = true;
	if (cell->is_measured) {
		misses += cell->missed;
		cell->missed = misses > accesses ? misses - accesses : 0;
		misses -= cell->missed;
		set(&counts, &counts.hits, 0, accesses - misses);
	} else {
		counts.hits = UNKNOWN_PAGES;
		counts.bytes[0] = UNKNOWN;
	}
	set(&counts, &counts.misses, 1, misses);
	set(&counts, &counts.readahead, 2, readahead);
	set(&counts, &counts.dirtied, 3, dirtied);
	counts.event.ts_ns = flushing->since_ns + 1;
	counts.inode = cell->inode;
	counts.path = cell->path;
	counts.cgroup = cell->cgroup;
	counts.comm[0] = cell->comm[0];
	counts.comm[1] = cell->comm[1];
	counts.pid = cell->pid;
	counts.device = cell->device;
	counts.fs = cell->fs;
	counts.op = cell->op;
	counts.by_kernel = cell->by_kernel;
	EMIT(counts);
	return 0;
}

SUBPROGRAM long flush_group(__u32 group, struct flushing *flushing)
{
	__u64 *cells_used = bpf_map_lookup_elem(&used, &group);

	flushing->group = group;
	if (cells_used && *cells_used)
		bpf_loop(CELL_GROUP, flush_cell, flushing, 0);
	return 0;
}

SEC("syscall")
int flush(__u64 *since_ns)
{
	struct flushing flushing = { .since_ns = *since_ns };

	bpf_loop(CELLS / CELL_GROUP, flush_group, &flushing, 0);
	return 0;
}

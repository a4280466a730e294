/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The data of one request: read from the kernel's structures, kept in its entry, tested by the
 * selections, written into a record.
 */
#ifndef WEIR_REQUEST_BPF_H
#define WEIR_REQUEST_BPF_H

#include "flow.h"
#include "table.bpf.h"

/* Kept in registers while a program runs. */
struct io {
	__u64 insert_ns;
	__u64 issue_ns;
	__u64 sector;
	__u64 cgroup;
	__u64 comm[2];
	__u64 wait_ns;
	__u64 service_ns;
	__u64 latency_ns;
	__u64 number;
	__u64 path;
	__u64 inode;
	__s64 seek;
	__u64 interarrival_ns;
	__u32 in_flight;
	__u32 bytes;
	__u32 device;
	__u32 index;
	__u32 marks;
	__u32 pid;
	__u16 subject;
	__u16 merges;
	__u16 cpu;
	__u16 status;
	__u8 op;
	__u8 flags;
	__u8 clauses;
	__u8 state;
};

static __always_inline void keep(struct entry *e, const struct io *io, bool is_odd)
{
	e->insert_ns = io->insert_ns;
	e->issue_ns = io->issue_ns;
	e->sector = io->sector;
	e->bytes = io->bytes;
	e->device = io->device;
	e->index = io->index;
	e->subject = io->subject;
	e->merges = io->merges;
	e->cpu = io->cpu;
	e->status = io->status;
	e->op = io->op;
	e->flags = io->flags;
	e->clauses = io->clauses;
	e->state = io->state;
	e->changed = 0;
	e->odd = is_odd;
	if (config.numbered)
		e->number = io->number;
	if (config.inode) {
		e->path = io->path;
		e->inode = io->inode;
	}
	if (config.flow) {
		e->seek = io->seek;
		e->interarrival_ns = io->interarrival_ns;
		e->in_flight = io->in_flight;
	}
	if (config.pid)
		e->pid = io->pid;
	if (config.cgroup)
		e->cgroup = io->cgroup;
	if (config.comm) {
		e->comm[0] = io->comm[0];
		e->comm[1] = io->comm[1];
	}
}

static __always_inline void recall(struct io *io, const struct entry *e)
{
	io->insert_ns = e->insert_ns;
	io->issue_ns = e->issue_ns;
	io->sector = e->sector;
	io->bytes = e->bytes;
	io->device = e->device;
	io->index = e->index;
	io->subject = e->subject;
	io->merges = e->merges;
	io->cpu = e->cpu;
	io->status = e->status;
	io->op = e->op;
	io->flags = e->flags;
	io->clauses = e->clauses;
	io->state = e->state;
	if (config.numbered)
		io->number = e->number;
	if (config.inode) {
		io->path = e->path;
		io->inode = e->inode;
	}
	if (config.flow) {
		io->seek = e->seek;
		io->interarrival_ns = e->interarrival_ns;
		io->in_flight = e->in_flight;
	}
	if (config.pid)
		io->pid = e->pid;
	if (config.cgroup)
		io->cgroup = e->cgroup;
	if (config.comm) {
		io->comm[0] = e->comm[0];
		io->comm[1] = e->comm[1];
	}
}

/* ---- Reading the kernel's structures ------------------------------------------------------------------ */

static __always_inline __u8 op_of(__u32 opf)
{
	__u32 op = opf & config.op_mask;

	if (op > 15)
		return OP_OTHER;
	return config.ops >> op * 4 & 15;
}

static __always_inline __u8 flags_of(__u32 opf)
{
	if (!config.flags)
		return 0;
	return !!(opf & config.fua) * FLAG_FUA | !!(opf & config.read_ahead) * FLAG_READ_AHEAD |
	       !!(opf & config.sync) * FLAG_SYNC | !!(opf & config.meta) * FLAG_META;
}

/*
 * All fields of a request, read at once: the verifier searches the type information of the whole kernel
 * for each access, on each path that it follows.
 */
struct view {
	struct request *rq;
	struct request_queue *queue;
	struct bio *bio;
	__u64 sector;
	__u32 opf;
	__u32 bytes;
	__u8 op;
	bool flush_step;	/* step of a flush sequence: its submitter does not wait for it */
};

static __always_inline struct view view_of(struct request *rq)
{
	struct view v = {
		.rq = rq,
		.queue = rq->q,
		.opf = rq->cmd_flags,
		.bytes = rq->__data_len,
		.sector = rq->__sector,
		.bio = rq->bio,
	};

	/* Read here, and not where it is used. */
	opaque(v.queue);
	v.flush_step = rq->rq_flags & config.flush_step;
	v.op = op_of(v.opf);
	return v;
}

/* The device to which it was submitted: a partition if one was named, otherwise the disk. */
static __always_inline __u32 device_of(const struct view *v)
{
	struct gendisk *disk;

	if (v->bio)
		return v->bio->bi_bdev->bd_dev;
	if (core_field_exists(((struct request___disk *)v->rq)->rq_disk))
		disk = ((struct request___disk *)v->rq)->rq_disk;
	else
		disk = v->queue->disk;
	if (!disk)
		return 0;
	return (__u32)disk->major << 20 | disk->first_minor;
}

/* The cgroup, if it is demanded. */
static __always_inline __u64 demanded_cgroup(struct bio *bio)
{
	return config.cgroup ? cgroup_of(bio) : 0;
}

/* The number of bios after the first; counting stops at a number that no request of 4 KiB pages reaches. */
#define BIOS_MAX 1024
static __always_inline __u16 merges_of(const struct view *v)
{
	struct bio *bio = v->bio;
	__u32 merges;

	if (!config.merges || !bio)
		return 0;
	for (merges = 0; merges < BIOS_MAX; merges++) {
		bio = bio->bi_next;
		if (!bio)
			break;
	}
	return merges;
}

static __always_inline void describe(struct io *io, const struct view *v)
{
	io->op = v->op;
	io->bytes = v->bytes;
	io->sector = v->sector;
	if (v->op == OP_WRITE && !v->bytes)
		io->op = OP_FLUSH;
	if (io->op == OP_FLUSH)
		io->sector = UNKNOWN;
	io->flags = flags_of(v->opf);
}

/* The device; false if requests of that device are not demanded. */
static __always_inline bool locate(struct io *io, __u32 device)
{
	struct marks marks = device_marks(device);

	io->device = device;
	io->index = marks.index;
	io->marks = marks.bits;
	return marks.bits & MARK_WANTED;
}

/* The submitter: the current task, at insertion only. */
static __always_inline void identify(struct io *io)
{
	__u64 comm[2] = {};

	if (config.pid)
		io->pid = bpf_get_current_pid_tgid() >> 32;
	if (config.kernel && bpf_get_current_task_btf()->flags & PF_KTHREAD)
		io->flags |= FLAG_KERNEL;
	if (config.comm) {
		bpf_get_current_comm(comm, sizeof(comm));
		io->comm[0] = comm[0];
		io->comm[1] = comm[1];
	}
}

/* Without the io controller the bio belongs to the root cgroup (1): the submitter's is more specific. */
static __always_inline void own_cgroup(struct io *io)
{
	if (config.task_cgroup && io->cgroup <= 1)
		io->cgroup = bpf_get_current_cgroup_id();
}

/* The next number, for consumers that do not receive each issue. */
static __always_inline void number(struct io *io)
{
	if (config.numbered)
		io->number = __sync_fetch_and_add(&state.numbers, 1) + 1;
}

/* ---- Selections ---------------------------------------------------------------------------- */

/* In the order in which their values become known. */
#define AT_INSERT (TEST_OP | TEST_PID | TEST_COMM)
#define PLACE (TEST_SECTORS | TEST_SECTOR | TEST_SECTOR_SPREAD)
#define AT_ISSUE (TEST_OP | PLACE)
#define WHERE (TEST_DEVICE | TEST_CGROUP)
#define TIMES (TEST_WAIT | TEST_SERVICE | TEST_LATENCY)

#define CLAUSES_ALL ((1 << CLAUSES) - 1)

static __always_inline bool within(__u64 value, const volatile __u64 *bounds)
{
	return value != UNKNOWN && value >= bounds[0] && value <= bounds[1];
}

static __always_inline bool passes(__u32 i, const struct io *io, __u32 tests, __u32 cgroup_marks)
{
	const volatile struct clause *c = &config.clauses[i];
	__u32 sectors = io->bytes >> 9;
	__u32 n;

	tests &= c->tests;
	if (tests & TEST_OP && !(c->ops >> io->op & 1))
		return false;
	if (tests & TEST_SECTORS && (sectors < c->sectors[0] || sectors > c->sectors[1]))
		return false;
	if (tests & TEST_SECTOR && !within(io->sector, c->sector))
		return false;
	if (tests & TEST_SECTOR_SPREAD) {
		__u32 number = spread(io->sector);

		if (io->sector == UNKNOWN || number < c->sector_spread[0] ||
		    number > c->sector_spread[1])
			return false;
	}
	if (tests & TEST_DEVICE && !(io->marks >> (1 + i) & 1))
		return false;
	if (tests & TEST_CGROUP && !(cgroup_marks >> (1 + i) & 1))
		return false;
	if (tests & TEST_PID && (!io->pid || io->pid < c->pid[0] || io->pid > c->pid[1]))
		return false;
	if (tests & TEST_COMM) {
		bool found = false;
#pragma unroll
		for (n = 0; n < COMMS; n++)
			if (n < c->comms && io->comm[0] == c->comm[n][0] &&
			    io->comm[1] == c->comm[n][1])
				found = true;
		if (!found)
			return false;
	}
	if (tests & TEST_WAIT && !within(io->wait_ns, c->wait_ns))
		return false;
	if (tests & TEST_SERVICE && !within(io->service_ns, c->service_ns))
		return false;
	if (tests & TEST_LATENCY && !within(io->latency_ns, c->latency_ns))
		return false;
	return true;
}

/* The clauses whose tests of these kinds pass, one bit each. */
static __always_inline __u8 passing(const struct io *io, __u32 tests)
{
	__u32 in_use = 0, cgroup_marks = MARKS_ALL, i;
	__u8 clauses = 0;

#pragma unroll
	for (i = 0; i < CLAUSES; i++)
		if (i < config.clause_count)
			in_use |= config.clauses[i].tests;
	if (in_use & tests & TEST_CGROUP)
		cgroup_marks = marks_in(&cgroups, config.cgroup_mask, io->cgroup).bits;
#pragma unroll
	for (i = 0; i < CLAUSES; i++)
		if (i < config.clause_count && passes(i, io, tests, cgroup_marks))
			clauses |= 1 << i;
	return clauses;
}

/* ---- Records ------------------------------------------------------------------------------- */

static __always_inline void tell(__u32 cpu, __u8 kind, __u64 request, const struct io *io,
				 __u64 ts_ns)
{
	/* True if all clauses that select this record are optional. */
	bool optional = !(io->clauses & config.kinds[kind] & ~config.optional);
	__u32 room = config.ring_slots - NESTED_MAX;
	struct wide_record *r;
	__u64 position;

	if (optional && state.shed)
		return;
	/* The other half of the ring is reserved for records that are not optional. */
	if (optional)
		room = config.ring_slots / 2;
	r = reserve(cpu, &position, room);
	if (unlikely(!r)) {
		if (optional)
			state.shed = 1;
		else
			COUNT(cpu, io->index, ring_full);
		return;
	}
	r->narrow.ts_ns = ts_ns;
	r->narrow.request = config.numbered ? io->number : request;
	r->narrow.sector = io->sector;
	r->narrow.wait_ns = io->wait_ns;
	r->narrow.service_ns = io->service_ns;
	r->narrow.bytes = io->bytes;
	r->narrow.device = io->device;
	r->narrow.what = kind << 4 | io->op;
	r->narrow.flags = io->flags;
	r->narrow.status = io->status;
	r->narrow.merges = io->merges;
	r->narrow.cpu = io->cpu;
	if (config.wide) {
		r->cgroup = io->cgroup;
		r->pid = io->pid;
	}
	if (config.flow) {
		r->in_flight = io->in_flight;
		r->seek = io->in_flight ? io->seek : NO_SEEK;
		r->interarrival_ns = io->in_flight ? io->interarrival_ns : UNKNOWN;
	}
	if (config.comm) {
		r->comm[0] = io->comm[0];
		r->comm[1] = io->comm[1];
	}
	if (config.inode) {
		struct file_record *with_file = (struct file_record *)r;

		with_file->path = io->path;
		with_file->inode = io->inode;
	}
	commit(&r->narrow.mark, position);
}

#endif

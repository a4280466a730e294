// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/*
 * The kernel side of the live tap: what the block layer does, request by request.
 *
 *   block_io_start     -> on_start      who submitted it, and when
 *   block_rq_issue     -> on_issue      what goes to the device: Q
 *   block_rq_requeue   -> on_requeue    will be issued again: no second Q
 *   block_rq_merge     -> on_merge      became part of another request
 *   block_rq_complete  -> on_complete   R or E, with what the entry says of the beginning
 *   block_bio_queue, block_bio_complete -> the same for devices without requests (dm, md, zram)
 *
 * A request in flight has an entry in a table keyed by the request itself; sector and tag change on
 * the way. Completion runs wherever the interrupt came in and never looks at the current task.
 * Records go to a ring per processor that the user side maps; nobody is woken.
 */
#include "kernel.bpf.h"
#include "tap.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

const volatile struct config config = {};

/* Entries that were opened by an unusual event while `track` is off; 0 nearly always. */
__u64 odd = 0;

/* Sizes are set before loading, from the number of processors and devices and from the options. */
#define TABLE(name, size)                                                                          \
	struct {                                                                                   \
		__uint(type, BPF_MAP_TYPE_ARRAY);                                                  \
		__uint(map_flags, BPF_F_MMAPABLE);                                                 \
		__uint(key_size, 4);                                                               \
		__uint(value_size, size);                                                          \
		__uint(max_entries, 1);                                                            \
	} name SEC(".maps")

TABLE(records, sizeof(struct wide_record));
TABLE(lanes, sizeof(struct lane));
TABLE(buckets, sizeof(struct bucket));
TABLE(entries, sizeof(struct entry));
TABLE(devices, sizeof(struct known));
TABLE(cgroups, sizeof(struct known));
TABLE(counters, sizeof(struct counts));

/* ---- Small questions ---------------------------------------------------------------------- */

/*
 * A number that names `pointer`: its distance from one of our own maps. Subtracting two pointers is
 * the one arithmetic on them that the verifier turns into a number, and the address stays private.
 */
static __always_inline __u64 name_of(void *pointer)
{
	__u64 name = (__u64)pointer;
	void *base = &odd;

	asm volatile("%0 -= %1" : "+r"(name) : "r"(base));
	return name;
}

static __always_inline __u32 hash(__u64 key)
{
	return (key * 0x9e3779b97f4a7c15ULL) >> 40;
}

static __always_inline __u32 append_op(void)
{
	if (core_enum_exists(enum req_op___append, REQ_OP_ZONE_APPEND))
		return core_enum_value(enum req_op___append, REQ_OP_ZONE_APPEND);
	if (core_enum_exists(enum req_opf___append, REQ_OP_ZONE_APPEND___opf))
		return core_enum_value(enum req_opf___append, REQ_OP_ZONE_APPEND___opf);
	return REQ_OP_WRITE;
}

static __always_inline __u8 op_of(__u32 opf)
{
	__u32 op = opf & 0xff;

	if (op <= REQ_OP_DISCARD)
		return op;
	if (op == REQ_OP_WRITE_ZEROES)
		return OP_WRITE_ZEROES;
	if (op == REQ_OP_SECURE_ERASE)
		return OP_DISCARD;
	if (op == append_op())
		return OP_WRITE;
	return OP_OTHER;
}

static __always_inline __u8 flags_of(__u32 opf)
{
	return (opf >> __REQ_FUA & 1) * FLAG_FUA | (opf >> __REQ_RAHEAD & 1) * FLAG_READ_AHEAD |
	       (opf >> __REQ_SYNC & 1) * FLAG_SYNC | (opf >> __REQ_META & 1) * FLAG_META;
}

/* Part of a flush sequence: not what its submitter waits for. */
static __always_inline bool in_flush_sequence(struct request *rq)
{
	__u32 bit = 1 << 4;

	if (core_enum_exists(enum rqf_flags___seq, __RQF_FLUSH_SEQ))
		bit = 1 << core_enum_value(enum rqf_flags___seq, __RQF_FLUSH_SEQ);
	return rq->rq_flags & bit;
}

/* The device it was addressed to: a partition if one was named, else the disk. */
static __always_inline __u32 device_of(struct request *rq)
{
	struct bio *bio = rq->bio;
	struct gendisk *disk;

	if (bio)
		return bio->bi_bdev->bd_dev;
	if (core_field_exists(((struct request___disk *)rq)->rq_disk))
		disk = ((struct request___disk *)rq)->rq_disk;
	else
		disk = rq->q->disk;
	if (!disk)
		return 0;
	return (__u32)disk->major << 20 | disk->first_minor;
}

static __always_inline __u64 cgroup_of(struct bio *bio)
{
	struct blkcg_gq *blkg;

	if (!config.cgroup || !bio || !core_field_exists(bio->bi_blkg))
		return 0;
	blkg = bio->bi_blkg;
	if (!blkg)
		return 0;
	return blkg->blkcg->css.cgroup->kn->id;
}

/* How many bios follow the first. A request of 4096 pages has at most as many. */
#define BIOS_MAX 4096
static __always_inline __u16 merges_of(struct request *rq)
{
	struct bio *bio, *last;
	__u32 merges;

	if (!config.merges)
		return 0;
	bio = rq->bio;
	last = rq->biotail;
	if (!bio || name_of(bio) == name_of(last))
		return 0;
	for (merges = 0; merges < BIOS_MAX; merges++) {
		bio = bio->bi_next;
		if (!bio)
			break;
	}
	return merges;
}

/* ---- Devices and cgroups ------------------------------------------------------------------- */

struct marks {
	__u32 index;
	__u32 bits;
};

#define MARKS_ALL 0xff
#define MARK_WANTED 1

static __always_inline struct marks marks_in(void *table, __u32 mask, __u64 key)
{
	struct marks unknown = { 0, MARKS_ALL };
	__u32 at = hash(key) & mask;
	struct known *known = bpf_map_lookup_elem(table, &at);
	int i;

	if (!known)
		return unknown;
#pragma unroll
	for (i = 0; i < SIBLINGS; i++)
		if (known->key[i] == key)
			return (struct marks){ known->index[i], known->marks[i] };
	return unknown;
}

static __always_inline struct marks device_marks(__u32 device)
{
	return marks_in(&devices, config.device_mask, (__u64)device + 1);
}

static __always_inline struct counts *counts_of(__u32 cpu, __u32 index)
{
	__u32 row = cpu * config.device_rows + index;

	return bpf_map_lookup_elem(&counters, &row);
}

#define COUNT(cpu, index, field)                                                                   \
	do {                                                                                       \
		struct counts *counts_ = counts_of(cpu, index);                                    \
		if (counts_)                                                                       \
			counts_->field++;                                                          \
	} while (0)

/* ---- The table of requests in flight ------------------------------------------------------- */

static __always_inline struct entry *entry_at(__u32 bucket, __u32 way)
{
	__u32 slot = bucket * WAYS + way;

	return bpf_map_lookup_elem(&entries, &slot);
}

static __always_inline struct entry *find(__u64 request)
{
	__u32 bucket = hash(request) & config.bucket_mask;
	struct bucket *b = bpf_map_lookup_elem(&buckets, &bucket);
	int way;

	if (!b)
		return NULL;
#pragma unroll
	for (way = 0; way < WAYS; way++)
		if (b->request[way] == request)
			return entry_at(bucket, way);
	return NULL;
}

/* A free entry for `request`; none if its bucket is full. */
static __always_inline struct entry *claim(__u64 request)
{
	__u32 bucket = hash(request) & config.bucket_mask;
	struct bucket *b = bpf_map_lookup_elem(&buckets, &bucket);
	int way;

	if (!b)
		return NULL;
#pragma unroll
	for (way = 0; way < WAYS; way++)
		if (!b->request[way] &&
		    __sync_val_compare_and_swap(&b->request[way], 0, request) == 0)
			return entry_at(bucket, way);
	return NULL;
}

static __always_inline void release(__u64 request, struct entry *entry)
{
	__u32 bucket = hash(request) & config.bucket_mask;
	struct bucket *b = bpf_map_lookup_elem(&buckets, &bucket);
	int way;

	if (!b)
		return;
	if (!config.track && entry->odd)
		__sync_fetch_and_add(&odd, -1);
	barrier();
#pragma unroll
	for (way = 0; way < WAYS; way++)
		if (b->request[way] == request) {
			if (config.ordered)
				*(volatile __u64 *)&b->request[way] = 0;
			else
				__sync_lock_test_and_set(&b->request[way], 0);
			return;
		}
}

/* ---- One request --------------------------------------------------------------------------- */

/* What is known of a request; lives in registers while a program runs and in its entry in between. */
struct io {
	__u64 insert_ns;
	__u64 issue_ns;
	__u64 sector;
	__u64 cgroup;
	__u64 comm[2];
	__u64 wait_ns;
	__u64 service_ns;
	__u64 latency_ns;
	__u32 bytes;
	__u32 device;
	__u32 index;
	__u32 marks;
	__u32 pid;
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
	e->merges = io->merges;
	e->cpu = io->cpu;
	e->status = io->status;
	e->op = io->op;
	e->flags = io->flags;
	e->clauses = io->clauses;
	e->state = io->state;
	e->requeued = 0;
	e->odd = is_odd;
	if (config.wide) {
		e->cgroup = io->cgroup;
		e->comm[0] = io->comm[0];
		e->comm[1] = io->comm[1];
		e->pid = io->pid;
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
	io->merges = e->merges;
	io->cpu = e->cpu;
	io->status = e->status;
	io->op = e->op;
	io->flags = e->flags;
	io->clauses = e->clauses;
	io->state = e->state;
	if (config.wide) {
		io->cgroup = e->cgroup;
		io->comm[0] = e->comm[0];
		io->comm[1] = e->comm[1];
		io->pid = e->pid;
	}
}

/* What the request itself says; false if its device is not wanted. */
static __always_inline bool describe(struct io *io, struct request *rq, __u8 op)
{
	struct marks marks;

	io->op = op;
	io->bytes = rq->__data_len;
	io->sector = rq->__sector;
	if (op == OP_WRITE && !io->bytes)
		io->op = OP_FLUSH;
	if (io->op == OP_FLUSH)
		io->sector = UNKNOWN;
	io->flags = flags_of(rq->cmd_flags);
	io->device = device_of(rq);
	marks = device_marks(io->device);
	io->index = marks.index;
	io->marks = marks.bits;
	io->cgroup = cgroup_of(rq->bio);
	return marks.bits & MARK_WANTED;
}

/* Who is submitting: the current task, at insertion only. */
static __always_inline void identify(struct io *io)
{
	__u64 comm[2] = {};

	if (config.pid)
		io->pid = bpf_get_current_pid_tgid() >> 32;
	if (config.comm) {
		bpf_get_current_comm(comm, sizeof(comm));
		io->comm[0] = comm[0];
		io->comm[1] = comm[1];
	}
	/* Without the io controller the bio belongs to the root cgroup (1): the submitter says more. */
	if (config.task_cgroup && io->cgroup <= 1)
		io->cgroup = bpf_get_current_cgroup_id();
}

/* ---- Selections ---------------------------------------------------------------------------- */

#define KNOWN_AT_START (TEST_OP | TEST_DEVICE | TEST_PID | TEST_COMM | TEST_CGROUP)
#define KNOWN_AT_ISSUE (KNOWN_AT_START | TEST_SECTOR | TEST_SECTORS)
#define KNOWN_TIMES (TEST_WAIT | TEST_SERVICE | TEST_LATENCY)

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

/* The clauses, a bit each, that pass those of `tests` that they make. */
static __always_inline __u8 passing(const struct io *io, __u32 tests)
{
	__u32 in_use = 0, cgroup_marks = MARKS_ALL;
	__u8 clauses = 0;
	__u32 i;

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

/* Programs that interrupt each other between looking at a ring and taking a slot of it. */
#define NESTED_MAX 16

static __always_inline struct wide_record *reserve(__u32 cpu, __u64 *position)
{
	struct lane *lane = bpf_map_lookup_elem(&lanes, &cpu);
	__u32 slot;

	if (!lane)
		return NULL;
	if (unlikely(lane->head - lane->tail >= config.lane_slots - NESTED_MAX))
		return NULL;
	*position = __sync_fetch_and_add(&lane->head, 1);
	slot = cpu * config.lane_slots + (*position & (config.lane_slots - 1));
	return bpf_map_lookup_elem(&records, &slot);
}

static __always_inline void commit(struct wide_record *record, __u64 position)
{
	barrier();
	if (config.ordered)
		*(volatile __u64 *)&record->narrow.mark = position + 1;
	else
		__sync_lock_test_and_set(&record->narrow.mark, position + 1);
}

static __always_inline void tell(__u32 cpu, __u8 kind, __u64 request, const struct io *io,
				 __u64 ts_ns)
{
	__u64 position;
	struct wide_record *r = reserve(cpu, &position);

	if (unlikely(!r)) {
		COUNT(cpu, io->index, ring_full);
		return;
	}
	r->narrow.ts_ns = ts_ns;
	r->narrow.request = request;
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
		r->comm[0] = io->comm[0];
		r->comm[1] = io->comm[1];
		r->pid = io->pid;
	}
	commit(r, position);
}

/* The end of a request: its times, the selections on them, and the record. */
static __always_inline void finish(__u32 cpu, __u64 request, struct io *io)
{
	__u8 kind = io->status ? KIND_ERROR : KIND_RESPONSE;
	__u64 now;

	io->clauses &= config.kinds[kind];
	if (!io->clauses)
		return;
	now = bpf_ktime_get_ns();
	io->wait_ns = UNKNOWN;
	io->service_ns = UNKNOWN;
	io->latency_ns = UNKNOWN;
	if (config.track) {
		if (io->insert_ns)
			io->latency_ns = now - io->insert_ns;
		if (io->issue_ns)
			io->service_ns = now - io->issue_ns;
		if (io->insert_ns && io->issue_ns)
			io->wait_ns = io->issue_ns - io->insert_ns;
		io->clauses &= passing(io, KNOWN_TIMES);
		if (!io->clauses)
			return;
		if (io->op == OP_FLUSH)
			io->wait_ns = io->latency_ns;
	}
	tell(cpu, kind, request, io, now);
}

/* ---- Programs ------------------------------------------------------------------------------ */

static __always_inline int start(struct request *rq)
{
	__u8 op = op_of(rq->cmd_flags);
	struct io io = {};
	struct entry *e = NULL;
	__u64 request;
	__u32 cpu;

	if (op == OP_OTHER || op == OP_FLUSH)
		return 0;
	/* A flush without data is never issued: its submission is all there is to tell. */
	if (!config.start && (op != OP_WRITE || rq->__data_len))
		return 0;
	request = name_of(rq);
	if (config.track) {
		e = find(request);
		if (config.insert_only && e)
			return 0;
	}
	cpu = bpf_get_smp_processor_id();
	if (unlikely(e)) {
		/* In use again although its completion was not seen. */
		COUNT(cpu, e->index, overtaken);
		release(request, e);
	}
	if (!describe(&io, rq, op))
		return 0;
	identify(&io);
	io.clauses = passing(&io, io.op == OP_FLUSH ? KNOWN_AT_ISSUE : KNOWN_AT_START);
	if (!io.clauses)
		return 0;
	io.insert_ns = bpf_ktime_get_ns();
	io.cpu = cpu;
	io.state = STARTED;
	if (io.op == OP_FLUSH) {
		io.state = ISSUED;
		io.wait_ns = UNKNOWN;
		io.service_ns = UNKNOWN;
		if (io.clauses & config.kinds[KIND_REQUEST])
			tell(cpu, KIND_REQUEST, request, &io, io.insert_ns);
	}
	if (!config.track)
		return 0;
	e = claim(request);
	if (e)
		keep(e, &io, 0);
	else
		COUNT(cpu, io.index, table_full);
	return 0;
}

SEC("tp_btf/block_io_start")
int on_start(__u64 *ctx)
{
	return start((struct request *)ctx[0]);
}

/* Before 6.5. It misses what goes to the device directly; on_issue makes up for that. */
SEC("tp_btf/block_rq_insert")
int on_insert(__u64 *ctx)
{
	return start((struct request *)ctx[0]);
}

/*
 * True if the request was issued before and comes again after a requeue: nobody is told twice. What
 * remains of a partly finished request is smaller, so its first size and sector stay.
 */
static __always_inline bool issued_again(struct entry *e, struct request *rq, __u64 request)
{
	if (e->state != ISSUED)
		return false;
	if (config.track) {
		if (!e->requeued)
			return false;
		e->requeued = 0;
		return true;
	}
	/* Requests only: the entry was made by on_requeue, and this issue is what it was made for. */
	release(request, e);
	return e->sector == rq->__sector && e->bytes == rq->__data_len;
}

SEC("tp_btf/block_rq_issue")
int on_issue(__u64 *ctx)
{
	struct request *rq = (struct request *)ctx[0];
	__u8 op = op_of(rq->cmd_flags);
	struct io io = {};
	struct entry *e = NULL;
	__u64 request;

	if (op == OP_OTHER || (op == OP_FLUSH && in_flush_sequence(rq)))
		return 0;
	request = name_of(rq);
	if (config.track || unlikely(odd))
		e = find(request);
	if (e) {
		if (issued_again(e, rq, request))
			return 0;
		if (config.track && e->state == ISSUED) {
			COUNT(bpf_get_smp_processor_id(), e->index, overtaken);
			release(request, e);
			e = NULL;
		}
		if (!config.track)
			e = NULL;
	}
	if (e) {
		/* Seen at its start: merging may have made it larger since. */
		recall(&io, e);
		io.bytes = rq->__data_len;
		io.sector = rq->__sector;
		io.clauses &= passing(&io, TEST_SECTOR | TEST_SECTORS);
		if (!io.clauses) {
			release(request, e);
			return 0;
		}
	} else {
		if (!describe(&io, rq, op))
			return 0;
		/* Before 6.5 a request that was not inserted goes to the device from where it is made. */
		if (config.start && config.insert_only)
			identify(&io);
		io.clauses = passing(&io, KNOWN_AT_ISSUE);
		if (!io.clauses)
			return 0;
	}
	io.merges = merges_of(rq);
	io.cpu = bpf_get_smp_processor_id();
	io.issue_ns = bpf_ktime_get_ns();
	io.state = ISSUED;
	if (config.start && config.insert_only && !io.insert_ns)
		io.insert_ns = io.issue_ns;
	io.wait_ns = UNKNOWN;
	io.service_ns = UNKNOWN;
	if (config.track) {
		if (io.insert_ns)
			io.wait_ns = io.issue_ns - io.insert_ns;
		if (!e) {
			e = claim(request);
			if (unlikely(!e))
				COUNT(io.cpu, io.index, table_full);
		}
		if (e)
			keep(e, &io, 0);
	}
	if (io.clauses & config.kinds[KIND_REQUEST])
		tell(io.cpu, KIND_REQUEST, request, &io, io.issue_ns);
	return 0;
}

/* Keeps what a request was when it is about to change and nothing is tracked. */
static __always_inline void keep_odd(__u64 request, struct io *io)
{
	struct entry *e = claim(request);

	if (!e) {
		COUNT(bpf_get_smp_processor_id(), io->index, table_full);
		return;
	}
	io->state = ISSUED;
	keep(e, io, 1);
	e->odd_ns = bpf_ktime_get_ns();
	if (!config.track)
		__sync_fetch_and_add(&odd, 1);
}

SEC("tp_btf/block_rq_requeue")
int on_requeue(__u64 *ctx)
{
	struct request *rq = (struct request *)ctx[0];
	__u64 request = name_of(rq);
	__u8 op = op_of(rq->cmd_flags);
	struct entry *e = NULL;
	struct io io = {};

	if (op == OP_OTHER || (op == OP_FLUSH && in_flush_sequence(rq)))
		return 0;
	if (config.track || odd)
		e = find(request);
	if (e) {
		e->requeued = 1;
		COUNT(bpf_get_smp_processor_id(), e->index, requeues);
		return 0;
	}
	/* A driver that is short of resources gives back what it never issued. */
	if (config.track || !rq->state || !describe(&io, rq, op))
		return 0;
	COUNT(bpf_get_smp_processor_id(), io.index, requeues);
	keep_odd(request, &io);
	return 0;
}

/* The request was appended to another one and will neither be issued nor completed by itself. */
SEC("tp_btf/block_rq_merge")
int on_merge(__u64 *ctx)
{
	__u64 request = name_of((void *)ctx[0]);
	struct entry *e = find(request);

	if (e)
		release(request, e);
	return 0;
}

SEC("tp_btf/block_rq_complete")
int on_complete(__u64 *ctx)
{
	struct request *rq = (struct request *)ctx[0];
	__s32 error = ctx[1];
	__u32 done = ctx[2], rest = rq->__data_len, cpu;
	__u8 op = op_of(rq->cmd_flags);
	bool step = in_flush_sequence(rq);
	struct entry *e = NULL;
	struct io io = {};
	__u64 request;
	__u16 status;

	/* Since 5.18 a blk_status_t, before a negative errno. */
	status = error < 0 ? ERRNO | -error : error;
	if (unlikely(op == OP_OTHER || (op == OP_FLUSH && step))) {
		cpu = bpf_get_smp_processor_id();
		io.index = device_marks(device_of(rq)).index;
		if (op == OP_OTHER)
			COUNT(cpu, io.index, other);
		else
			COUNT(cpu, io.index, flush_commands);
		return 0;
	}
	request = name_of(rq);
	if (config.track || unlikely(odd) || !rest)
		e = find(request);
	if (e) {
		if (unlikely(step || done < rest)) {
			if (!e->status)
				e->status = status;
			return 0;
		}
		recall(&io, e);
		if (!io.status)
			io.status = status;
		/* Its entry was opened by an earlier part of itself only. */
		if (config.track && unlikely(e->odd))
			io.flags |= FLAG_ORPHAN;
		release(request, e);
		cpu = bpf_get_smp_processor_id();
		COUNT(cpu, io.index, seen);
	} else {
		if (!describe(&io, rq, op))
			return 0;
		io.status = status;
		io.cpu = cpu = bpf_get_smp_processor_id();
		if (!config.track)
			io.merges = merges_of(rq);
		if (unlikely(step || done < rest)) {
			io.clauses = passing(&io, KNOWN_AT_ISSUE);
			keep_odd(request, &io);
			return 0;
		}
		COUNT(cpu, io.index, seen);
		io.clauses = passing(&io, KNOWN_AT_ISSUE);
		if (!io.clauses)
			return 0;
		if (config.track && (config.start || io.op != OP_FLUSH))
			io.flags |= FLAG_ORPHAN;
	}
	if (config.track && unlikely(io.flags & FLAG_ORPHAN) && io.clauses)
		COUNT(cpu, io.index, orphans);
	finish(cpu, request, &io);
	return 0;
}

/* Devices without requests: a bio is all there is, from its submission to its end. */
SEC("tp_btf/block_bio_queue")
int on_bio_queue(__u64 *ctx)
{
	struct bio *bio = (struct bio *)ctx[0];
	struct block_device *bdev = bio->bi_bdev;
	struct io io = {};
	struct marks marks;
	struct entry *e;
	__u64 request;

	if (bdev->bd_disk->queue->mq_ops)
		return 0;
	io.op = op_of(bio->bi_opf);
	if (io.op == OP_OTHER)
		return 0;
	io.bytes = bio->bi_iter.bi_size;
	io.sector = bio->bi_iter.bi_sector;
	if (io.op == OP_WRITE && !io.bytes)
		io.op = OP_FLUSH;
	if (io.op == OP_FLUSH)
		io.sector = UNKNOWN;
	io.flags = flags_of(bio->bi_opf);
	io.device = bdev->bd_dev;
	marks = device_marks(io.device);
	if (!(marks.bits & MARK_WANTED))
		return 0;
	io.index = marks.index;
	io.marks = marks.bits;
	io.cgroup = cgroup_of(bio);
	identify(&io);
	io.clauses = passing(&io, KNOWN_AT_ISSUE);
	if (!io.clauses)
		return 0;
	request = name_of(bio);
	io.cpu = bpf_get_smp_processor_id();
	io.insert_ns = io.issue_ns = bpf_ktime_get_ns();
	io.service_ns = UNKNOWN;
	io.state = ISSUED;
	if (config.kinds[KIND_RESPONSE] | config.kinds[KIND_ERROR]) {
		e = find(request);
		if (e) {
			COUNT(io.cpu, e->index, overtaken);
			release(request, e);
		}
		e = claim(request);
		if (e)
			keep(e, &io, 0);
		else
			COUNT(io.cpu, io.index, table_full);
	}
	if (io.clauses & config.kinds[KIND_REQUEST])
		tell(io.cpu, KIND_REQUEST, request, &io, io.issue_ns);
	return 0;
}

SEC("tp_btf/block_bio_complete")
int on_bio_complete(__u64 *ctx)
{
	struct bio *bio = (struct bio *)ctx[1];
	__u64 request = name_of(bio);
	struct entry *e = find(request);
	struct io io = {};
	__u32 cpu;

	if (!e)
		return 0;
	recall(&io, e);
	release(request, e);
	io.status = bio->bi_status;
	cpu = bpf_get_smp_processor_id();
	COUNT(cpu, io.index, seen);
	finish(cpu, request, &io);
	return 0;
}

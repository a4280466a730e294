// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/*
 * The kernel side of the live tap: follows each request through the block layer.
 *
 *   block_io_start     -> on_start      the submitter, and the time of submission
 *   block_rq_issue     -> on_issue      the request is issued to the device: Q
 *   block_rq_requeue   -> on_requeue    the request will be issued again: no second Q
 *   block_rq_merge     -> on_merge      the request became part of another request
 *   block_rq_complete  -> on_complete   R or E, with the data that the entry has of the beginning
 *   block_bio_queue, block_bio_complete -> the same for devices without requests (dm, md, zram)
 *
 * A request in flight has an entry in a table keyed by the address of the request, since sector and
 * tag can change. Completion runs in any interrupt context and never reads the current task.
 * Records are written to a ring per processor that user space maps; no wakeup is sent.
 *
 * Compile with `cargo xtask bpf`.
 */
#include "kernel.bpf.h"
#include "tap.h"
#include "table.bpf.h"
#include "request.bpf.h"
#include "request_file.bpf.h"
#include "flow.bpf.h"
#include "fold.bpf.h"
#include "hist.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* The entry is reused, or belongs to another request now, and no completion was seen. */
static __always_inline void overtake(__u32 cpu, __u64 request, struct entry *e)
{
	COUNT(cpu, e->index, replaced);
	hist_forget(e);
	flow_forget(e);
	release(request, e);
}

/* The table has no room for the entry of a request. */
static __always_inline void lost_track(const struct io *io)
{
	COUNT(io->cpu, io->index, table_full);
	if (hist.on && io->clauses & hist.clauses)
		NOT_ENTERED(io->cpu, table_full);
}

/* ---- Insertion ----------------------------------------------------------------------------- */

static __always_inline int start(struct view v)
{
	struct entry *e = NULL;
	struct io io = {};
	__u64 request;

	if (!state.live || v.op == OP_OTHER || v.op == OP_FLUSH)
		return 0;
	/* A flush without data is never issued: its record is written at submission. */
	if (!config.start && (v.op != OP_WRITE || v.bytes))
		return 0;
	request = name_of(v.rq);
	io.cpu = bpf_get_smp_processor_id();
	if (config.track) {
		e = find(request);
		if (config.insert_only && e)
			return 0;
		if (unlikely(e))
			overtake(io.cpu, request, e);
	}
	describe(&io, &v);
	identify(&io);
	/* Merging can still enlarge a request, except a flush. */
	io.clauses = passing(&io, io.op == OP_FLUSH ? AT_INSERT | AT_ISSUE : AT_INSERT);
	if (!io.clauses || !locate(&io, device_of(&v)))
		return 0;
	io.cgroup = demanded_cgroup(v.bio);
	own_cgroup(&io);
	io.clauses &= passing(&io, WHERE);
	if (!io.clauses)
		return 0;
	io.insert_ns = bpf_ktime_get_ns();
	io.state = STARTED;
	if (config.track) {
		e = claim(request);
		if (!e)
			lost_track(&io);
	}
	if (io.op == OP_FLUSH) {
		number(&io);
		add_file(&io, NULL, request);
		io.state = ISSUED;
		io.wait_ns = UNKNOWN;
		io.service_ns = UNKNOWN;
		if (e) {
			/* No other event reports when it is issued. */
			io.issue_ns = io.insert_ns;
			hist_issue(&io);
			flow_issue(&io);
			io.insert_ns = io.issue_ns;
			io.issue_ns = 0;
		}
		if (io.clauses & config.kinds[KIND_REQUEST])
			tell(io.cpu, KIND_REQUEST, request, &io, io.insert_ns);
	}
	if (e)
		keep(e, &io, 0);
	return 0;
}

SEC("tp_btf/block_io_start")
int on_start(__u64 *ctx)
{
	return start(view_of((struct request *)ctx[0]));
}

/* Before 6.5. Requests that bypass insertion are not seen here; on_issue handles them. */
SEC("tp_btf/block_rq_insert")
int on_insert(__u64 *ctx)
{
	return start(view_of((struct request *)ctx[0]));
}

/* The request was appended to another one: it will be neither issued nor completed separately. */
SEC("tp_btf/block_rq_merge")
int on_merge(__u64 *ctx)
{
	__u64 request = name_of((void *)ctx[0]);
	struct entry *e = find(request);

	if (e)
		release(request, e);
	return 0;
}

/* ---- Issue --------------------------------------------------------------------------------- */

/*
 * True if the request was issued before and is issued again after a requeue: no second record is
 * written. A partly completed request is smaller, so its first size and sector are kept.
 */
static __always_inline bool issued_again(struct entry *e, const struct view *v, __u64 request)
{
	if (e->state != ISSUED)
		return false;
	if (config.track) {
		if (!(e->changed & REQUEUED))
			return false;
		e->changed &= ~REQUEUED;
		return true;
	}
	/* Without tracking: on_requeue made the entry, to recognise this issue. */
	release(request, e);
	return e->sector == v->sector && e->bytes == v->bytes;
}

/* The issue of a request without an entry; true if it is selected. */
static __always_inline bool select_at_issue(struct io *io, const struct view *v)
{
	describe(io, v);
	/* Before 6.5 a request that was not inserted is issued directly by its submitter. */
	if (config.start && config.insert_only)
		identify(io);
	io->clauses = passing(io, AT_INSERT | AT_ISSUE);
	if (!io->clauses || !locate(io, device_of(v)))
		return false;
	io->cgroup = demanded_cgroup(v->bio);
	if (config.start && config.insert_only)
		own_cgroup(io);
	io->clauses &= passing(io, WHERE);
	return io->clauses;
}

SEC("tp_btf/block_rq_issue")
int on_issue(__u64 *ctx)
{
	struct view v = view_of((struct request *)ctx[0]);
	struct entry *e = NULL;
	struct io io = {};
	__u64 request;
	bool direct;

	if (!state.live || v.op == OP_OTHER || (v.op == OP_FLUSH && v.flush_step))
		return 0;
	request = name_of(v.rq);
	if (!config.start && !select_at_issue(&io, &v))
		return 0;
	if (config.track || unlikely(state.odd))
		e = find(request);
	if (e && issued_again(e, &v, request))
		return 0;
	io.cpu = bpf_get_smp_processor_id();
	if (e && (!config.track || unlikely(e->state == ISSUED))) {
		if (config.track)
			overtake(io.cpu, request, e);
		e = NULL;
	}
	if (config.start) {
		if (e) {
			__u16 cpu = io.cpu;

			recall(&io, e);
			io.cpu = cpu;
			/* Merging may have enlarged it in the meantime. */
			io.bytes = v.bytes;
			io.sector = v.sector;
			io.clauses &= passing(&io, PLACE);
			if (!io.clauses) {
				release(request, e);
				return 0;
			}
		} else if (!select_at_issue(&io, &v)) {
			return 0;
		}
	}
	io.merges = merges_of(&v);
	io.issue_ns = bpf_ktime_get_ns();
	number(&io);
	io.state = ISSUED;
	direct = config.start && config.insert_only && !io.insert_ns;
	if (direct)
		io.insert_ns = io.issue_ns;
	io.wait_ns = UNKNOWN;
	io.service_ns = UNKNOWN;
	add_file(&io, v.bio, request);
	if (config.track) {
		if (!e)
			e = claim(request);
		if (e) {
			hist_issue(&io);
			flow_issue(&io);
			if (direct)
				io.insert_ns = io.issue_ns;
			keep(e, &io, 0);
		} else {
			lost_track(&io);
		}
		if (io.insert_ns)
			io.wait_ns = io.issue_ns - io.insert_ns;
	}
	if (io.clauses & config.kinds[KIND_REQUEST])
		tell(io.cpu, KIND_REQUEST, request, &io, io.issue_ns);
	return 0;
}

/* Makes an entry with the state of a request without one, before the request changes. */
static __always_inline void keep_odd(__u64 request, struct io *io)
{
	struct entry *e = claim(request);

	if (!e) {
		COUNT(bpf_get_smp_processor_id(), io->index, table_full);
		return;
	}
	io->state = ISSUED;
	keep(e, io, 1);
	e->changed = CHANGED;
	e->odd_ns = bpf_ktime_get_ns();
	if (!config.track)
		__sync_fetch_and_add(&state.odd, 1);
}

SEC("tp_btf/block_rq_requeue")
int on_requeue(__u64 *ctx)
{
	struct view v = view_of((struct request *)ctx[0]);
	__u64 request = name_of(v.rq);
	struct entry *e = NULL;
	struct io io = {};

	if (!state.live || v.op == OP_OTHER || (v.op == OP_FLUSH && v.flush_step))
		return 0;
	if (config.track || state.odd)
		e = find(request);
	if (e) {
		e->changed |= REQUEUED;
		COUNT(bpf_get_smp_processor_id(), e->index, requeues);
		return 0;
	}
	/* A driver that is short of resources returns requests that it never issued. */
	if (config.track || v.rq->state == config.idle)
		return 0;
	describe(&io, &v);
	if (!locate(&io, device_of(&v)))
		return 0;
	COUNT(bpf_get_smp_processor_id(), io.index, requeues);
	keep_odd(request, &io);
	return 0;
}

/* ---- Completion ---------------------------------------------------------------------------- */

/* The completion of a request: its times, the selections on them, and the record. */
static __always_inline void finish(__u32 cpu, __u64 request, struct io *io)
{
	__u8 kind = io->status ? KIND_ERROR : KIND_RESPONSE;
	__u64 now;

	if (!(io->clauses & config.kinds[kind]) && !(hist.on && io->subject) &&
	    !(config.flow && io->in_flight))
		return;
	now = flow_finish(io, hist_finish(cpu, io, bpf_ktime_get_ns()));
	io->clauses &= config.kinds[kind];
	if (!io->clauses)
		return;
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
		io->clauses &= passing(io, TIMES);
		if (!io->clauses)
			return;
	}
	if (folding.count && !fold(cpu, io, now))
		return;
	if (config.track && io->service_ns == UNKNOWN)
		io->wait_ns = io->latency_ns;
	if (config.numbered && !io->number)
		number(io);
	tell(cpu, kind, request, io, now);
}

/* A command without a record: it is counted, so that the total is known. */
static __always_inline void count_command(const struct view *v)
{
	__u32 index = device_marks(device_of(v)).index;
	__u32 cpu = bpf_get_smp_processor_id();

	if (v->op == OP_OTHER)
		COUNT(cpu, index, other);
	else
		COUNT(cpu, index, flush_commands);
}

/*
 * The completion, whole or partial, of a request without an entry: only responses are demanded, or
 * no clause selected it at issue, or it was in flight at the start, or the table was full.
 */
static __always_inline int complete_unknown(struct view v, __u64 request, __u16 status,
					    bool last)
{
	struct io io = {};
	__u32 cpu;

	if (!locate(&io, device_of(&v)))
		return 0;
	describe(&io, &v);
	io.cgroup = demanded_cgroup(v.bio);
	io.status = status;
	io.clauses = passing(&io, AT_INSERT | AT_ISSUE | WHERE);
	if (unlikely(!last)) {
		/* Before it changes, even if it is not selected: the remainder may be selected. */
		if (!config.track)
			io.merges = merges_of(&v);
		keep_odd(request, &io);
		return 0;
	}
	io.cpu = cpu = bpf_get_smp_processor_id();
	COUNT(cpu, io.index, seen);
	if (!io.clauses)
		return 0;
	if (!config.track) {
		io.merges = merges_of(&v);
	} else if (config.start || io.op != OP_FLUSH) {
		io.flags |= FLAG_ORPHAN;
		COUNT(cpu, io.index, orphans);
	}
	finish(cpu, request, &io);
	return 0;
}

SEC("tp_btf/block_rq_complete")
int on_complete(__u64 *ctx)
{
	struct view v = view_of((struct request *)ctx[0]);
	__u32 done = ctx[2], cpu;
	bool last = !v.flush_step && done >= v.bytes;
	struct entry *e = NULL;
	struct io io = {};
	__u64 request;
	__u16 status = ctx[1]; /* blk_status_t, before 5.18 a negative errno */

	if (!state.live)
		return 0;
	if (unlikely(v.op == OP_OTHER || (v.op == OP_FLUSH && v.flush_step))) {
		count_command(&v);
		return 0;
	}
	request = name_of(v.rq);
	if (config.track || unlikely(state.odd) || !v.bytes)
		e = find(request);
	/*
	 * An entry of an earlier request that used the same structure and whose completion was not seen. The
	 * sector does not show this after a partial completion or at the end of a flush sequence, when it has
	 * moved, nor if an unseen merge may have moved it; but then the start of every request is seen.
	 */
	if (config.issue && e && v.bytes && !e->changed && unlikely(e->sector != v.sector)) {
		overtake(bpf_get_smp_processor_id(), request, e);
		e = NULL;
	}
	if (!e)
		return complete_unknown(v, request, status, last);
	if (unlikely(!last)) {
		if (!config.issue && !e->changed && e->state == STARTED) {
			e->sector = v.sector;
			e->bytes = v.bytes;
			e->merges = merges_of(&v);
		}
		e->changed |= CHANGED;
		if (!e->status)
			e->status = status;
		return 0;
	}
	recall(&io, e);
	if (!config.issue && io.state == STARTED) {
		/* Merging may have enlarged it in the meantime. */
		if (!e->changed) {
			io.sector = v.sector;
			io.bytes = v.bytes;
			io.merges = merges_of(&v);
		}
		io.clauses &= passing(&io, PLACE);
	}
	if (!io.status)
		io.status = status;
	cpu = bpf_get_smp_processor_id();
	/* The request had no entry before a part of it was completed. */
	if (config.track && unlikely(e->odd) && io.clauses) {
		io.flags |= FLAG_ORPHAN;
		COUNT(cpu, io.index, orphans);
	}
	release(request, e);
	COUNT(cpu, io.index, seen);
	finish(cpu, request, &io);
	return 0;
}

/* ---- Devices without requests: only bios are seen, from submission to completion -------------- */

/* What is compared with the kernel's counters: a driver may split a bio, but not its sectors. */
static __always_inline __u32 sectors_of(const struct io *io)
{
	return io->op == OP_DISCARD ? 0 : io->bytes >> 9;
}

SEC("tp_btf/block_bio_queue")
int on_bio_queue(__u64 *ctx)
{
	struct bio *bio = (struct bio *)ctx[0];
	struct block_device *bdev = bio->bi_bdev;
	struct entry *e;
	struct io io = {};
	__u64 request;

	if (!state.live || bdev->bd_disk->queue->mq_ops)
		return 0;
	io.op = op_of(bio->bi_opf);
	if (io.op == OP_OTHER || !locate(&io, bdev->bd_dev))
		return 0;
	io.bytes = bio->bi_iter.bi_size;
	io.sector = bio->bi_iter.bi_sector;
	if (io.op == OP_WRITE && !io.bytes)
		io.op = OP_FLUSH;
	if (io.op == OP_FLUSH)
		io.sector = UNKNOWN;
	io.flags = flags_of(bio->bi_opf);
	io.cgroup = demanded_cgroup(bio);
	own_cgroup(&io);
	identify(&io);
	io.clauses = passing(&io, AT_INSERT | AT_ISSUE | WHERE);
	if (!io.clauses)
		return 0;
	request = name_of(bio);
	io.cpu = bpf_get_smp_processor_id();
	io.insert_ns = io.issue_ns = bpf_ktime_get_ns();
	number(&io);
	io.service_ns = UNKNOWN;
	io.state = ISSUED;
	add_tied_file(&io, bio);
	COUNT_MORE(io.cpu, io.index, sectors_submitted, sectors_of(&io));
	if (hist.on || config.kinds[KIND_RESPONSE] | config.kinds[KIND_ERROR]) {
		e = find(request);
		if (e)
			overtake(io.cpu, request, e);
		e = claim(request);
		if (e) {
			hist_issue(&io);
			flow_issue(&io);
			io.insert_ns = io.issue_ns;
			keep(e, &io, 0);
		} else {
			lost_track(&io);
			COUNT_MORE(io.cpu, io.index, sectors_seen, sectors_of(&io));
		}
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
	COUNT_MORE(cpu, io.index, sectors_seen, sectors_of(&io));
	finish(cpu, request, &io);
	return 0;
}

/* ---- For comparison: the cost of a program that does nothing ---------------------------------- */

SEC("tp_btf/block_io_start")
int empty_start(void)
{
	return 0;
}

SEC("tp_btf/block_rq_issue")
int empty_issue(void)
{
	return 0;
}

SEC("tp_btf/block_rq_complete")
int empty_complete(void)
{
	return 0;
}

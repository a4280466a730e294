/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The relation of a request to the others of its disk: the number in flight when it is issued, the
 * distance from the end of the previous one, and the time since its issue. The same as flow.rs computes
 * from records in timestamp order, without a record of each issue.
 */
#ifndef WEIR_FLOW_BPF_H
#define WEIR_FLOW_BPF_H

#include "flow.h"
#include "order.bpf.h"
#include "request.bpf.h"

TABLE(flows, sizeof(struct flow));
TABLE(flow_pasts, sizeof(struct flow_past));

static __always_inline struct flow_past *flow_past_at(__u32 disk, __u32 past)
{
	__u32 at = disk * config.flow_pasts + past;

	return bpf_map_lookup_elem(&flow_pasts, &at);
}

/*
 * Enters the issue of a request, which has an entry. Its time may change by a few nanoseconds. Without a
 * row of its own, or if other processors were faster in each attempt, its relation is unknown.
 */
static __always_inline void flow_issue(struct io *io)
{
	struct flow_past *from, *to;
	__u64 word, past, ts_ns, next, last_ns;
	__u32 index = io->index, try;
	struct flow *f;

	io->in_flight = 0;
	io->seek = NO_SEEK;
	io->interarrival_ns = UNKNOWN;
	if (!(io->clauses & config.flow))
		return;
	f = index ? bpf_map_lookup_elem(&flows, &index) : NULL;
	if (!f) {
		COUNT(io->cpu, 0, unordered);
		return;
	}
	for (try = 0; try < TRIES; try++) {
		word = *(volatile __u64 *)&f->order.word;
		past = free_past(word, io->cpu);
		from = flow_past_at(index, word & PAST_MASK);
		to = flow_past_at(index, past);
		if (!from || !to || depth_in(word) >= DEPTH_MAX)
			break;
		ts_ns = time_after(word, f->order.last_ns, io->issue_ns);
		next = from->next;
		last_ns = from->issue_ns;
		to->issue_ns = ts_ns;
		to->next = io->op == OP_FLUSH ? next : io->sector + (io->bytes >> 9);
		if (put(&f->order, word, ts_ns, past)) {
			io->issue_ns = ts_ns;
			io->in_flight = depth_in(word) + 1;
			if (next && io->op != OP_FLUSH)
				io->seek = io->sector + 1 - next;
			if (last_ns)
				io->interarrival_ns = ts_ns - last_ns;
			return;
		}
	}
	COUNT(io->cpu, index, unordered);
}

/* Enters the completion of a request at `now`; returns its time in the order of the disk. */
static __always_inline __u64 flow_finish(const struct io *io, __u64 now)
{
	__u32 index = io->index;
	struct flow *f;

	if (!config.flow || !io->in_flight)
		return now;
	f = bpf_map_lookup_elem(&flows, &index);
	return f ? leave(&f->order, now) : now;
}

/* The completion of a request was not seen; it is no longer in flight. */
static __always_inline void flow_forget(const struct entry *e)
{
	__u32 index = e->index;
	struct flow *f;

	if (!config.flow || !e->in_flight)
		return;
	f = bpf_map_lookup_elem(&flows, &index);
	if (f)
		drop(&f->order);
}

#endif

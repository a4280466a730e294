/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Histograms of disk I/O, computed in the kernel: requests are entered at issue and at completion.
 *
 * Counts are kept per processor. The relation of a request to the previous one of its subject spans all
 * processors (order.bpf.h), so these counts equal those computed from the records in timestamp order.
 */
#ifndef WEIR_HIST_BPF_H
#define WEIR_HIST_BPF_H

#include "hist.h"
#include "order.bpf.h"
#include "request.bpf.h"

const volatile struct hist_config hist SEC(".rodata.hist") = {};

TABLE(hist_blocks, sizeof(union block));
TABLE(hist_blocks_of, sizeof(struct blocks_of));
TABLE(hist_subjects, sizeof(struct subject));
TABLE(hist_pasts, sizeof(struct past));
TABLE(hist_names, sizeof(struct subject_bucket));
TABLE(hist_owners, sizeof(struct known));
TABLE(hist_not_entered, sizeof(struct not_entered));
TABLE(hist_state, sizeof(struct hist_state));

#define NOT_ENTERED(cpu_, field)                                                                   \
	do {                                                                                       \
		__u32 at_ = cpu_;                                                                  \
		struct not_entered *n_ = bpf_map_lookup_elem(&hist_not_entered, &at_);             \
		if (n_)                                                                            \
			n_->field++;                                                               \
	} while (0)

/* ---- Bins ---------------------------------------------------------------------------------- */

/* The lowest byte, for an index whose range the verifier can derive. */
static __always_inline __u64 byte_of(__u64 v)
{
	opaque(v);
	return v & 255;
}

/* The number of the log bin of `v`, which is below 2^40. */
static __always_inline __u32 log_bin(__u64 v)
{
	__u32 shift;

	if (v < 1 << 8)
		shift = hist.small[byte_of(v)];
	else if (v < 1 << 16)
		shift = hist.log2[byte_of(v >> 8)] + 4;
	else if (v < 1 << 24)
		shift = hist.log2[byte_of(v >> 16)] + 12;
	else if (v < 1ULL << 32)
		shift = hist.log2[byte_of(v >> 24)] + 20;
	else
		shift = hist.log2[byte_of(v >> 32)] + 28;
	return (shift << 4) + (v >> shift);
}

/* The number of the bin of `value`, in the log bin that `cut` describes. */
static __always_inline __u64 bin_in(__u64 cut, __s64 value)
{
	/* Without a branch: the result of the comparison is unpredictable. */
	return (cut & 0xfff) + ((__u64)(((__s64)cut >> 12) - value) >> 63);
}

static __always_inline __u64 time_bin(__u64 value)
{
	__u64 log = log_bin(value > TIME_NS_MAX ? TIME_NS_MAX : value);

	opaque(log);
	return log < TIME_LOG_BINS ? bin_in(hist.time_cuts[log], value) : 0;
}

/* Log bins of negative distances come first. */
static __always_inline __u64 seek_bin(__s64 distance)
{
	__u64 sign = distance >> 63;
	__u64 magnitude = (distance ^ sign) - sign;
	__u64 log = log_bin(magnitude > SEEK_SECTORS_MAX ? SEEK_SECTORS_MAX : magnitude);

	log = SEEK_LOG_BINS / 2 + ((log ^ sign) - sign);
	opaque(log);
	return log < SEEK_LOG_BINS ? bin_in(hist.seek_cuts[log], distance) : 0;
}

/* Nearly every request is shorter than half a mebibyte; those have their bins in a table. */
static __always_inline __u64 length_bin(__u32 bytes)
{
	__u64 log, sectors = bytes >> 9;

	opaque(sectors);
	if (sectors < SHORT_SECTORS)
		return hist.short_bins[sectors];
	log = log_bin(bytes);
	opaque(log);
	return log < LENGTH_LOG_BINS ? bin_in(hist.length_cuts[log], bytes) : 0;
}

static __always_inline __u64 depth_bin(__u64 depth)
{
	__u64 log;

	opaque(depth);
	if (depth < SHALLOW)
		return hist.shallow_bins[depth];
	log = log_bin(depth);
	opaque(log);
	return log < DEPTH_LOG_BINS ? bin_in(hist.depth_cuts[log], depth) : 0;
}

static __always_inline void enter(struct head *head, __u64 *bins, __u32 bins_max, __u64 bin,
				  __s64 value)
{
	__u64 key = value ^ 1ULL << 63;

	opaque(bin);
	if (bin < bins_max)
		bins[bin]++;
	head->sum += value;
	if (unlikely(key > head->greatest))
		head->greatest = key;
	if (unlikely(~key > head->least))
		head->least = ~key;
}

#define ENTER(block, metric, KIND, bin, value)                                                     \
	enter(&(block)->metric, (block)->metric##_bins, KIND##_BINS, bin, value)

/* ---- Memory -------------------------------------------------------------------------------- */

/*
 * The block of an operation, or of all, in this processor's part of a subject; NULL if there is no
 * memory left. Programs may interrupt each other here, so a block may be allocated and never used.
 */
static __always_inline union block *block_of(struct blocks_of *of, __u32 which)
{
	__u32 number = of->block[which & 7], zero = 0;
	struct hist_state *s;

	if (unlikely(!number)) {
		s = bpf_map_lookup_elem(&hist_state, &zero);
		if (!s || s->blocks >= hist.blocks_max)
			return NULL;
		number = __sync_fetch_and_add(&s->blocks, 1) + 1;
		if (number >= hist.blocks_max)
			return NULL;
		of->block[which & 7] = number;
	}
	return bpf_map_lookup_elem(&hist_blocks, &number);
}

static __always_inline struct blocks_of *blocks_of(__u32 subject, __u32 cpu)
{
	__u32 at = subject * hist.processors + cpu;

	return bpf_map_lookup_elem(&hist_blocks_of, &at);
}

/* ---- Subjects ------------------------------------------------------------------------------ */

static __always_inline __u64 owner_in(__u64 key)
{
	return marks_in(&hist_owners, hist.owner_mask, key).index;
}

/* The number of the VM to which a request belongs, if that is certain; otherwise 0. */
static __always_inline __u64 owner_of(const struct io *io)
{
	__u64 working = io->pid ? owner_in(OWNS_PROCESS | io->pid) : 0;
	__u64 charged = io->cgroup ? owner_in(OWNS_CGROUP | io->cgroup) : 0;

	/* A kernel thread identifies no VM; the device does if it belongs to one disk. */
	if (!working && io->flags & FLAG_KERNEL)
		working = owner_in(OWNS_DEVICE | io->device);
	if (working && charged && working != charged)
		return 0;
	return working ? working : charged;
}

static __always_inline __u64 who_of(const struct io *io)
{
	if (hist.by == BY_OWNER)
		return owner_of(io);
	if (hist.by == BY_PROCESS)
		return io->pid;
	if (hist.by == BY_CGROUP)
		return io->cgroup;
	return 0;
}

static __always_inline struct past *past_at(__u32 subject, __u32 past)
{
	__u32 at = subject * hist.processors * 2 + past;

	return bpf_map_lookup_elem(&hist_pasts, &at);
}

/* The number + 1 of the subject that a word of its bucket refers to, if it is this one; otherwise 0. */
static __always_inline __u32 number_if(__u64 there, __u64 name, __u32 device, __u64 who)
{
	__u32 number = (__u32)(there & ((1 << NUMBER_BITS) - 1)) - 1;
	struct subject *s;

	if ((there ^ name) >> NUMBER_BITS)
		return 0;
	s = bpf_map_lookup_elem(&hist_subjects, &number);
	return s && s->device == device && s->who == who ? number + 1 : 0;
}

/*
 * Makes a subject; returns its number + 1, or 0 if there are too many. Its first past, which user space
 * has initialised, is number 0.
 */
static __always_inline __u32 make_subject(struct subject_bucket *b, __u64 name, __u32 device,
					  __u64 who)
{
	__u32 number, zero = 0, i;
	struct hist_state *state = bpf_map_lookup_elem(&hist_state, &zero);
	struct subject *s;
	__u64 there;

	if (!state || state->subjects >= hist.subjects_max)
		return 0;
	number = __sync_fetch_and_add(&state->subjects, 1);
	if (number >= hist.subjects_max)
		return 0;
	s = bpf_map_lookup_elem(&hist_subjects, &number);
	if (!s)
		return 0;
	s->who = who;
	s->device = device;
	for (i = 0; i < WAYS; i++) {
		there = __sync_val_compare_and_swap(&b->name[i], 0, name | (number + 1));
		if (!there)
			return number + 1;
		/* Another processor was faster; this subject stays unused. */
		there = number_if(there, name, device, who);
		if (there)
			return there;
	}
	return 0;
}

/* The number + 1 of the subject of `device` and `who`, made if there is none; 0 if there is no room. */
static __always_inline __u32 subject_of(__u32 device, __u64 who)
{
	__u64 key = (who ^ (__u64)device << 32 ^ device) * 0x9e3779b97f4a7c15ULL;
	__u64 name = key & ~((1ULL << NUMBER_BITS) - 1);
	__u32 bucket = key >> 40 & hist.bucket_mask, number, i;
	struct subject_bucket *b = bpf_map_lookup_elem(&hist_names, &bucket);

	if (!b)
		return 0;
	for (i = 0; i < WAYS && b->name[i]; i++) {
		number = number_if(b->name[i], name, device, who);
		if (number)
			return number;
	}
	return make_subject(b, name, device, who);
}

/* ---- Order --------------------------------------------------------------------------------- */

/* The relation of a request to earlier ones. */
struct relation {
	__u64 ts_ns;
	__u64 depth;
	__u64 before_ns;	/* 0 is none */
	__u64 before_of_op_ns;	/* likewise */
	__s64 seek;		/* at least NO_SECTOR / 2 away without */
	__s64 seek_of_op;
	__s64 closest;
};

static __always_inline bool is_far(__s64 distance)
{
	return distance < -(__s64)(NO_SECTOR / 2);
}

/*
 * Writes the past after a request at `sector` into `to`, and finds the closest of the last sectors. If
 * several are equally close, the latest is used: its age is in the low bits of the compared value.
 */
static __always_inline __s64 go_on(struct past *to, const struct past *from, __u64 sector,
				   __u64 end)
{
	__u64 best = ~0ULL >> 1, age = 0;
	const __u64 *old = from->ends;
	__u64 *new = to->ends;
	__u32 i, j;

	to->ends[0] = end;
	for (i = 0; i < hist.closest_of; i += AT_ONCE) {
#pragma unroll
		for (j = 0; j < AT_ONCE; j++) {
			__u64 last = old[j];
			__s64 distance = sector - last;
			__u64 sign = distance >> 63;
			__u64 rank = ((distance ^ sign) - sign) << 7 | (age + j) << 1 | (sign & 1);
			__s64 less = rank - best;

			best += less & less >> 63;
			new[j + 1] = last;
		}
		old += AT_ONCE;
		new += AT_ONCE;
		age += AT_ONCE;
	}
	to->ends[hist.closest_of] = NO_SECTOR;
	age = -(best & 1);
	return ((best >> 7) ^ age) - age;
}

/* The same for a request without a sector: a flush. */
static __always_inline void go_on_without_sector(struct past *to, const struct past *from)
{
	__u32 i, j;

	for (i = 0; i < hist.closest_of; i += AT_ONCE)
#pragma unroll
		for (j = 0; j < AT_ONCE; j++)
			to->ends[i + j] = from->ends[i + j];
}

/*
 * Assigns a request its position among the events of its subject; false if other processors were faster
 * in each attempt. The past may be overwritten while it is read, but then the order has changed as well.
 */
static __always_inline bool find_place(struct subject *s, __u32 number, __u32 cpu,
				       const struct io *io, struct relation *is)
{
	bool has_sector = io->op != OP_FLUSH;
	__u64 last_sector = io->sector + (io->bytes >> 9) - 1;
	struct past *from, *to;
	__u64 word, op = io->op, past;
	__u32 try, i;

	opaque(op);
	op &= 7;
	for (try = 0; try < TRIES; try++) {
		word = *(volatile __u64 *)&s->order.word;
		past = free_past(word, cpu);
		from = past_at(number, word & PAST_MASK);
		to = past_at(number, past);
		is->depth = depth_in(word) + 1;
		if (!from || !to || is->depth > DEPTH_MAX)
			return false;
		is->ts_ns = time_after(word, s->order.last_ns, io->issue_ns);
		is->before_ns = from->ts_ns;
		is->before_of_op_ns = from->ts_of_op_ns[op];
		to->ts_ns = is->ts_ns;
#pragma unroll
		for (i = 0; i < HIST_OPS; i++) {
			to->ts_of_op_ns[i] = from->ts_of_op_ns[i];
			to->end_of_op[i] = from->end_of_op[i];
		}
		to->ts_of_op_ns[op] = is->ts_ns;
		if (has_sector) {
			is->seek = io->sector - from->ends[0];
			is->seek_of_op = io->sector - from->end_of_op[op];
			to->end_of_op[op] = last_sector;
			is->closest = go_on(to, from, io->sector, last_sector);
		} else {
			go_on_without_sector(to, from);
		}
		if (put(&s->order, word, is->ts_ns, past))
			return true;
	}
	return false;
}

/* ---- Functions for the programs ------------------------------------------------------------ */

static __always_inline void enter_relation(struct of_all *all, struct of_op *op,
					   const struct io *io, const struct relation *is)
{
	/* Then seek distance and interarrival time are the same for both, and so are the bins. */
	bool after_same_op = is->before_ns == is->before_of_op_ns;
	__u64 bin = 0, gap_ns;
	__s64 seek;

	ENTER(op, depth, DEPTH, depth_bin(is->depth), is->depth);
	if (is->before_of_op_ns) {
		gap_ns = is->ts_ns - is->before_of_op_ns;
		bin = time_bin(gap_ns);
		ENTER(op, interarrival, TIME, bin, gap_ns);
	}
	if (is->before_ns) {
		gap_ns = is->ts_ns - is->before_ns;
		if (!after_same_op)
			bin = time_bin(gap_ns);
		ENTER(all, interarrival, TIME, bin, gap_ns);
	}
	if (io->op == OP_FLUSH)
		return;
	ENTER(op, length, LENGTH, length_bin(io->bytes), io->bytes);
	if (!is_far(is->seek_of_op)) {
		seek = is->seek_of_op;
		bin = seek_bin(seek);
		ENTER(op, seek, SEEK, bin, seek);
	}
	if (!is_far(is->seek)) {
		seek = is->seek;
		if (!after_same_op)
			bin = seek_bin(seek);
		ENTER(all, seek, SEEK, bin, seek);
		ENTER(all, closest, SEEK, seek_bin(is->closest), is->closest);
	}
}

/*
 * Enters the issue of a request, which has an entry: `io->subject` is kept there. The time of the issue
 * may change by a few nanoseconds.
 */
static __always_inline void hist_issue(struct io *io)
{
	struct relation is = {};
	struct blocks_of *of;
	union block *all, *op;
	struct subject *s;
	__u32 cpu = io->cpu, number;

	io->subject = 0;
	if (!hist.on || !(io->clauses & hist.clauses) || io->issue_ns >= state.hist_until_ns)
		return;
	number = subject_of(io->device, who_of(io)) - 1;
	of = blocks_of(number, cpu);
	s = bpf_map_lookup_elem(&hist_subjects, &number);
	if (unlikely(!of || !s)) {
		NOT_ENTERED(cpu, subjects_full);
		return;
	}
	all = block_of(of, OF_ALL);
	op = block_of(of, io->op);
	if (unlikely(!all || !op)) {
		NOT_ENTERED(cpu, blocks_full);
		return;
	}
	if (unlikely(!find_place(s, number, cpu, io, &is))) {
		NOT_ENTERED(cpu, contended);
		return;
	}
	io->subject = number + 1;
	io->issue_ns = is.ts_ns;
	enter_relation(&all->all, &op->op, io, &is);
}

/* Enters the completion of a request at `now`; returns its time in the order of the subject. */
static __always_inline __u64 hist_finish(__u32 cpu, const struct io *io, __u64 now)
{
	__u32 number = (__u32)io->subject - 1;
	struct blocks_of *of;
	struct subject *s;
	union block *op;
	__u64 time_ns;

	if (!hist.on || !io->subject || now >= state.hist_until_ns)
		return now;
	of = blocks_of(number, cpu);
	s = bpf_map_lookup_elem(&hist_subjects, &number);
	if (!of || !s)
		return now;
	now = leave(&s->order, now);
	op = block_of(of, io->op);
	if (unlikely(!op)) {
		NOT_ENTERED(cpu, ends_blocks_full);
		return now;
	}
	if (io->issue_ns) {
		time_ns = now - io->issue_ns;
		ENTER(&op->op, service, TIME, time_bin(time_ns), time_ns);
	}
	if (hist.waits && io->insert_ns) {
		time_ns = now - io->insert_ns;
		ENTER(&op->op, latency, TIME, time_bin(time_ns), time_ns);
		time_ns = io->issue_ns - io->insert_ns;
		if (io->issue_ns)
			ENTER(&op->op, wait, TIME, time_bin(time_ns), time_ns);
	}
	return now;
}

/* The completion of a request was not seen; it is no longer in flight. */
static __always_inline void hist_forget(const struct entry *e)
{
	__u32 number = (__u32)e->subject - 1;
	struct subject *s;

	if (!hist.on || !e->subject)
		return;
	s = bpf_map_lookup_elem(&hist_subjects, &number);
	if (s)
		drop(&s->order);
}

#endif

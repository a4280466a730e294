/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * A kernel stream: programs that emit events, each a structure of at most EVENT_BYTES_MAX bytes.
 *
 *	#include "stream.bpf.h"
 *
 *	struct opened {
 *		struct event event;
 *		__u32 pid;
 *		__u32 flags;
 *	};
 *
 *	SEC("tp_btf/...")
 *	int on_open(__u64 *ctx)
 *	{
 *		struct opened o = {};
 *
 *		o.pid = bpf_get_current_pid_tgid() >> 32;
 *		EMIT(o);
 *		return 0;
 *	}
 *
 * EMIT() tests the event's selections, samples it, adds it to groups and otherwise writes it to the
 * ring of the processor; an event for which there is no room is counted. The table of columns in the
 * stream's Rust file has the offset of each field. Initialise an event with zeros (`= {}`): padding is
 * copied too. Texts have 16 bytes and are padded with zeros. A program declares the kernel structures
 * that it reads, with CO-RE. Programs may interrupt each other and run in any context except NMI.
 */
#ifndef WEIR_STREAM_BPF_H
#define WEIR_STREAM_BPF_H

#include "base.bpf.h"
#include "stream.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

const volatile struct stream_config config = {};
const volatile struct folding folding SEC(".rodata.fold") = {};
struct stream_state state = {};

struct record {
	__u64 words[EVENT_BYTES_MAX / 8];
};

/* The loader sets the size of a record to the size of the stream's events. */
TABLE(records, sizeof(struct record));
TABLE(counts, sizeof(struct stream_counts));

#include "ring.bpf.h"

/* ---- Fields -------------------------------------------------------------------------------- */

/* The number at `slot`, extended to 64 bits. The loader's table guarantees that it lies in the event. */
static __always_inline __u64 number_at(const void *event, const volatile struct slot *slot)
{
	const void *at = event + slot->offset;

	switch (slot->bytes) {
	case 1:
		return slot->is_signed ? (__u64) * (const __s8 *)at : *(const __u8 *)at;
	case 2:
		return slot->is_signed ? (__u64) * (const __s16 *)at : *(const __u16 *)at;
	case 4:
		return slot->is_signed ? (__u64) * (const __s32 *)at : *(const __u32 *)at;
	default:
		return *(const __u64 *)at;
	}
}

/* ---- Selections ---------------------------------------------------------------------------- */

static __always_inline bool is_one_of(const void *event, const volatile struct test_of *test)
{
	const __u64 *text = event + test->slot.offset;
	bool found = false;
	__u32 i;

#pragma unroll
	for (i = 0; i < TEXTS; i++)
		if (i < test->count && text[0] == test->values[2 * i] &&
		    text[1] == test->values[2 * i + 1])
			found = true;
	return found;
}

static __always_inline bool passes_test(const void *event, const volatile struct test_of *test)
{
	bool found = false;
	__u64 number;
	__u32 i;

	if (test->kind == TEST_TEXTS)
		return is_one_of(event, test);
	number = number_at(event, &test->slot);
	if (test->slot.nullable && number == test->slot.null)
		return false;
	if (test->kind == TEST_NUMBERS) {
#pragma unroll
		for (i = 0; i < TEXTS; i++)
			if (i < test->count && number == test->values[i])
				found = true;
		return found;
	}
	if (test->kind == TEST_SAMPLE)
		number = spread(number);
	return (__s64)number >= (__s64)test->values[0] && (__s64)number <= (__s64)test->values[1];
}

/* The clauses that the event passes, one bit each. */
static __always_inline __u8 passing(const void *event)
{
	__u8 clauses = 0;
	__u32 i, j;

#pragma unroll
	for (i = 0; i < CLAUSES; i++)
		if (i < config.clause_count) {
			const volatile struct clause *clause = &config.clauses[i];
			bool passes = true;

#pragma unroll
			for (j = 0; j < TESTS; j++)
				if (j < clause->count && passes)
					passes = passes_test(event, &clause->tests[j]);
			clauses |= passes << i;
		}
	/* From here on the verifier does not need to follow each set of clauses separately. */
	return clauses | state.zero;
}

/* ---- Groups -------------------------------------------------------------------------------- */

/* The values of an event that a fold reads. */
struct finished {
	__u64 ts_ns;
	__u64 values[STREAM_MEASURES];
	const void *event;
	__u32 cpu;
	__u8 clauses;
};

static __always_inline void key_of(const struct finished *f, __u32 number, __u64 *key)
{
	__u32 i;

	number &= FOLDS - 1;
#pragma unroll
	for (i = 0; i < KEY_WORDS; i++)
		if (i < config.key_words[number])
			key[1 + i] = number_at(f->event, &config.keys[number][i]);
}

static __always_inline bool may_fold(const struct finished *f, __u32 number)
{
	return f->clauses & folding.folds[number & (FOLDS - 1)].clauses;
}

/* The number of events in an interval is not bounded. */
#define SUMS_MAY_OVERFLOW 1

#define MEASURE_MASK (STREAM_MEASURES - 1)

#include "groups.bpf.h"

/* Converts a negative value to one that no fold accepts: the event becomes a record. */
#define NEGATIVE (1ULL << 63)

/* The folds that contain the event now, one bit each. */
static __always_inline __u8 fold(const struct event *event)
{
	struct fold_cpu *own = begin_fold(event->cpu);
	struct finished f = {};
	__u32 i;

	if (!own)
		return 0;
	f.ts_ns = event->ts_ns;
	f.event = event;
	f.cpu = event->cpu;
	f.clauses = event->clauses;
#pragma unroll
	for (i = 0; i < STREAM_MEASURES; i++)
		if (i < config.measure_count) {
			const volatile struct slot *slot = &config.measures[i];
			__u64 number = number_at(event, slot);

			if (slot->nullable && number == slot->null)
				f.values[i] = UNKNOWN;
			else
				f.values[i] = (__s64)number < 0 ? NEGATIVE : number;
		}
	return fold_all(&f, own);
}

/* ---- Emission ------------------------------------------------------------------------------ */

/*
 * Whether a record is needed for the event: it passes a clause, and not all of its demands have it in
 * groups. Fills in the head.
 */
static __always_inline bool selected(struct event *event)
{
	__u8 clauses;
	__u32 i;

	if (!state.live)
		return false;
	event->cpu = bpf_get_smp_processor_id();
	clauses = passing(event);
	if (!clauses)
		return false;
	event->clauses = clauses;
	if (!event->ts_ns)
		event->ts_ns = bpf_ktime_get_ns();
	if (folding.count) {
		event->folded = fold(event);
#pragma unroll
		for (i = 0; i < FOLDS; i++)
			if (event->folded >> i & 1)
				clauses &= ~folding.folds[i].clauses;
	}
	return clauses;
}

/* A record for the event in the ring of its processor; counted if there is no room. */
static __always_inline struct record *record_of(const struct event *event, __u64 *position)
{
	struct stream_counts *own;
	struct record *r;
	__u32 cpu = event->cpu;

	r = reserve(cpu, position, config.ring_slots - NESTED_MAX);
	if (unlikely(!r)) {
		own = bpf_map_lookup_elem(&counts, &cpu);
		if (own)
			__sync_fetch_and_add(&own->ring_full, 1);
	}
	return r;
}

/* Copies the first `words` words of an event, except the mark. */
static __always_inline void copy(struct record *r, const struct event *event, __u32 words)
{
	const __u64 *from = (const __u64 *)event;
	__u32 i;

#pragma unroll
	for (i = 1; i < EVENT_BYTES_MAX / 8; i++)
		if (i < words)
			r->words[i] = from[i];
}

static __always_inline void emit(struct event *event, __u32 bytes)
{
	struct record *r;
	__u64 position;

	if (!selected(event))
		return;
	r = record_of(event, &position);
	if (!r)
		return;
	copy(r, event, bytes / 8);
	commit(&r->words[0], position);
}

/* Adds one to a counter of the stream, by its position in the list of the stream's Rust file. */
static __always_inline void count(__u32 counter)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct stream_counts *own;

	own = state.live ? bpf_map_lookup_elem(&counts, &cpu) : NULL;
	if (own)
		__sync_fetch_and_add(&own->other[counter], 1);
}

/* Emits an event, a structure that begins with `struct event event`. */
#define EMIT(e)                                                                                    \
	do {                                                                                       \
		_Static_assert(sizeof(e) % 8 == 0, "whole words");                                 \
		_Static_assert(sizeof(e) <= EVENT_BYTES_MAX, "EVENT_BYTES_MAX");                   \
		emit(&(e).event, sizeof(e));                                                       \
	} while (0)

#endif

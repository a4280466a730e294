// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/*
 * A probe that a query defines, or a pair of probes. The loader generates the instructions that read
 * its fields (generate.rs) and writes them over the blocks of placeholders below, before the program
 * is loaded. It sets the type of the program as well. The first block reads the fields that the kernel
 * tests or groups by into the event; the second one writes the others to the record, if there is one.
 * For a pair, the others compute the keys of its beginning and of its end, and read the fields of the
 * beginning.
 *
 * Compile with `cargo xtask bpf`.
 */
#include "stream.bpf.h"

#define BPF_MAP_TYPE_LRU_HASH 9
#define BPF_ANY 0
#define BPF_NOEXIST 1
#define EEXIST 17

static long (*bpf_map_update_elem)(void *map, const void *key, const void *value,
				   __u64 flags) = (void *)2;
static long (*bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static __u64 (*bpf_get_current_ancestor_cgroup_id)(int level) = (void *)123;

/* Constants set before the program is loaded; see generate.rs. */
struct probe_config {
	__u64 hits_max;		/* per second and processor */
	__u64 cgroup_id;	/* hits in this cgroup and below it; 0 for all */
	__u32 event_words;	/* words of the event that are copied to the record */
	__u32 busy_ns_max;	/* run time per second and processor */
	__u32 pid;		/* hits of this process; 0 for all */
	__u32 cgroup_level;	/* the depth of the cgroup */
};
_Static_assert(sizeof(struct probe_config) == 32, "struct probe_config");

const volatile struct probe_config probe SEC(".rodata.probe") = {};

struct probed {
	struct event event;
	__u64 fields[(EVENT_BYTES_MAX - sizeof(struct event)) / 8];
};
_Static_assert(sizeof(struct probed) == EVENT_BYTES_MAX, "struct probed");

/* What a beginning and an end have in common. */
struct pair_key {
	__u64 words[4];
};

/* A beginning without an end so far. */
struct begun {
	__u64 ts_ns;		/* 0 until the fields are complete */
	__u64 fields[383];
};
_Static_assert(sizeof(struct begun) == 3072, "struct begun");

/* The oldest are dropped if there are too many. The loader sets the size of a value. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__uint(key_size, sizeof(struct pair_key));
	__uint(value_size, sizeof(struct begun));
} begun SEC(".maps");

const volatile struct begun nothing SEC(".rodata.begun") = {};

/* In the order of the counters in mod.rs. */
enum probe_counter {
	OVER_SHARE,
	NOT_HELD,
	WITHOUT_END,
	WITHOUT_BEGIN,
};

/* Where the counts have the run time of this second, in ns, which is no counter. */
#define BUSY_NS 7

/*
 * A block of `count` placeholders, `r0 = mark`. Generated instructions find the context in r6 and the
 * memory that they fill in in r7; they may change r0 to r5, r8 and r9.
 */
#define GENERATED(mark, count, context, memory)                                                    \
	do {                                                                                       \
		register void *r6 asm("r6") = (context);                                           \
		register void *r7 asm("r7") = (memory);                                            \
		asm volatile(".rept " #count "\n\tr0 = " #mark "\n\t.endr"                         \
			     : "+r"(r6), "+r"(r7)                                                  \
			     :                                                                     \
			     : "r0", "r1", "r2", "r3", "r4", "r5", "r8", "r9", "memory");          \
	} while (0)

/* The same for the end of a pair: the instructions find the beginning in r8. */
#define GENERATED_END(mark, count, context, memory, beginning)                                     \
	do {                                                                                       \
		register void *r6 asm("r6") = (context);                                           \
		register void *r7 asm("r7") = (memory);                                            \
		register void *r8 asm("r8") = (beginning);                                         \
		asm volatile(".rept " #count "\n\tr0 = " #mark "\n\t.endr"                         \
			     : "+r"(r6), "+r"(r7), "+r"(r8)                                        \
			     :                                                                     \
			     : "r0", "r1", "r2", "r3", "r4", "r5", "r9", "memory");                \
	} while (0)

/* The clock is read for one of so many hits, a power of two, and the run time of this one measured. */
#define HITS_PER_CLOCK 64

/* A longer run was interrupted: the rest of the time is not that of the program. */
#define RUN_NS_MAX 50000

/* Whether the hits of the current thread are not read. */
static __always_inline bool out_of_scope(void)
{
	if (probe.pid && bpf_get_current_pid_tgid() >> 32 != probe.pid)
		return true;
	return probe.cgroup_id &&
	       bpf_get_current_ancestor_cgroup_id(probe.cgroup_level) != probe.cgroup_id;
}

static __always_inline struct stream_counts *own_counts(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&counts, &cpu);
}

/* Begins another second of the counts when it has come. */
static __always_inline void count_second(struct stream_counts *own, __u64 now_ns)
{
	__u64 second = now_ns / 1000000000;

	if (own->second != second) {
		own->second = second;
		own->hits = 0;
		own->other[BUSY_NS] = 0;
	}
}

/* Whether the programs have used their share of the processor in this second; counts the loss. */
static __always_inline bool over_share(struct stream_counts *own)
{
	if (own->other[BUSY_NS] < probe.busy_ns_max)
		return false;
	__sync_fetch_and_add(&own->other[OVER_SHARE], 1);
	return true;
}

/*
 * Whether the second has had as many hits, or as much run time, as is allowed. Sets the time at which
 * a hit that is measured began.
 */
static __always_inline bool throttled(__u64 *began_ns)
{
	struct stream_counts *own = own_counts();

	if (!own)
		return true;
	if (own->hits % HITS_PER_CLOCK == 0 || own->hits >= probe.hits_max ||
	    own->other[BUSY_NS] >= probe.busy_ns_max) {
		*began_ns = bpf_ktime_get_ns();
		count_second(own, *began_ns);
		if (own->hits >= probe.hits_max) {
			__sync_fetch_and_add(&own->throttled, 1);
			return true;
		}
		if (over_share(own))
			return true;
	}
	own->hits++;
	return false;
}

/* Adds the run time of `runs` hits, each as long as that which began then. */
static __always_inline void add_run_time(__u64 began_ns, __u64 runs)
{
	struct stream_counts *own = own_counts();
	__u64 run_ns = bpf_ktime_get_ns() - began_ns;

	if (run_ns > RUN_NS_MAX)
		run_ns = RUN_NS_MAX;
	if (own)
		own->other[BUSY_NS] += run_ns * runs;
}

/* Adds the run time of a measured hit. It stands for those before it that were not. */
static __always_inline void measured(__u64 began_ns)
{
	struct stream_counts *own;

	if (!began_ns)
		return;
	own = own_counts();
	if (own)
		add_run_time(began_ns, own->hits > HITS_PER_CLOCK ? HITS_PER_CLOCK : 1);
}

SEC("hit")
int on_hit(void *ctx)
{
	struct probed p = {};
	struct record *r;
	__u64 position, began_ns = 0;

	if (!state.live || out_of_scope() || throttled(&began_ns))
		return 0;
	GENERATED(0x7eedbe01, 256, ctx, &p);
	if (selected(&p.event)) {
		r = record_of(&p.event, &position);
		if (r) {
			copy(r, &p.event, probe.event_words);
			GENERATED(0x7eedbe02, 384, ctx, r);
			commit(&r->words[0], position);
		}
	}
	measured(began_ns);
	return 0;
}

/* The beginning of a pair. */
SEC("begin")
int on_begin(void *ctx)
{
	struct pair_key key = {};
	__u64 began_ns = 0;
	struct begun *b;
	long error;

	if (!state.live || out_of_scope() || throttled(&began_ns))
		return 0;
	GENERATED(0x7eedbe03, 64, ctx, &key);
	error = bpf_map_update_elem(&begun, &key, (const void *)&nothing, BPF_NOEXIST);
	if (error == -EEXIST) {
		count(WITHOUT_END);
		error = bpf_map_update_elem(&begun, &key, (const void *)&nothing, BPF_ANY);
	}
	b = error ? NULL : bpf_map_lookup_elem(&begun, &key);
	if (!b) {
		count(NOT_HELD);
		return 0;
	}
	GENERATED(0x7eedbe04, 512, ctx, b);
	b->ts_ns = bpf_ktime_get_ns();
	measured(began_ns);
	return 0;
}

/*
 * The end of a pair, of which the beginning is in the scope: it may be hit by another thread. Each is
 * measured: it may be on another processor than its beginning.
 */
SEC("end")
int on_end(void *ctx)
{
	struct stream_counts *own = own_counts();
	struct pair_key key = {};
	struct probed p = {};
	struct record *r;
	__u64 position, began_ns;
	struct begun *b;

	if (!state.live || !own)
		return 0;
	began_ns = bpf_ktime_get_ns();
	p.event.ts_ns = began_ns;
	GENERATED(0x7eedbe05, 64, ctx, &key);
	b = bpf_map_lookup_elem(&begun, &key);
	if (!b || !b->ts_ns) {
		if (!out_of_scope())
			count(WITHOUT_BEGIN);
		return 0;
	}
	count_second(own, began_ns);
	if (over_share(own)) {
		bpf_map_delete_elem(&begun, &key);
		return 0;
	}
	GENERATED_END(0x7eedbe01, 256, ctx, &p, b);
	if (selected(&p.event)) {
		r = record_of(&p.event, &position);
		if (r) {
			copy(r, &p.event, probe.event_words);
			GENERATED_END(0x7eedbe02, 384, ctx, r, b);
			commit(&r->words[0], position);
		}
	}
	bpf_map_delete_elem(&begun, &key);
	add_run_time(began_ns, 1);
	return 0;
}

// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/*
 * A probe that a query defines. The loader generates the instructions that read its fields
 * (generate.rs) and writes them over the two blocks of placeholders below, before the program is
 * loaded. It sets the type of the program as well. The first block reads the fields that the kernel
 * tests or groups by into the event; the second one writes the others to the record, if there is one.
 *
 * Compile with `cargo xtask bpf`.
 */
#include "stream.bpf.h"

/* Constants set before the program is loaded; see generate.rs. */
struct probe_config {
	__u64 hits_max;		/* per second and processor */
	__u32 event_words;	/* words of the event that are copied to the record */
	__u32 spare;
};
_Static_assert(sizeof(struct probe_config) == 16, "struct probe_config");

const volatile struct probe_config probe SEC(".rodata.probe") = {};

struct probed {
	struct event event;
	__u64 fields[(EVENT_BYTES_MAX - sizeof(struct event)) / 8];
};
_Static_assert(sizeof(struct probed) == EVENT_BYTES_MAX, "struct probed");

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

/* The clock is read once for so many hits, a power of two. */
#define HITS_PER_CLOCK 64

/* Whether the second has had as many hits as are allowed. */
static __always_inline bool throttled(void)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct stream_counts *own = bpf_map_lookup_elem(&counts, &cpu);
	__u64 second;

	if (!own)
		return true;
	if (own->hits % HITS_PER_CLOCK == 0 || own->hits >= probe.hits_max) {
		second = bpf_ktime_get_ns() / 1000000000;
		if (own->second != second) {
			own->second = second;
			own->hits = 0;
		}
		if (own->hits >= probe.hits_max) {
			__sync_fetch_and_add(&own->throttled, 1);
			return true;
		}
	}
	own->hits++;
	return false;
}

SEC("hit")
int on_hit(void *ctx)
{
	struct probed p = {};
	struct record *r;
	__u64 position;

	if (!state.live || throttled())
		return 0;
	GENERATED(0x7eedbe01, 256, ctx, &p);
	if (!selected(&p.event))
		return 0;
	r = record_of(&p.event, &position);
	if (!r)
		return 0;
	copy(r, &p.event, probe.event_words);
	GENERATED(0x7eedbe02, 384, ctx, r);
	commit(&r->words[0], position);
	return 0;
}

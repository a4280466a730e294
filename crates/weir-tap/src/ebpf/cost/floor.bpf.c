// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/*
 * The least that observes every request and every completion: two programs that follow a request by
 * its driver tag. With `records` each writes 64 bytes to a ring of its processor; without, the
 * completion counts its latency in a bin of a power of two. Nothing is selected, lost records are not
 * counted, and devices are not distinguished. Only benchmarks use it.
 *
 * Compile with `cargo xtask bpf`.
 */
#include "base.bpf.h"
#include "ring.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define TAGS (1 << 16)
#define SLOTS (1 << 14)
#define BINS 64

struct request {
	int tag;
	unsigned int cmd_flags;
	unsigned int __data_len;
	unsigned long long __sector;
} __attribute__((preserve_access_index));

/* The mark, the position plus one, is written last: the record is complete. */
struct record {
	__u64 mark;
	__u64 ts;
	__u64 begin;
	__u64 sector;
	__u32 bytes;
	__u32 tag;
	__u32 flags;
	__u32 error;
	__u64 unused[2];
};
_Static_assert(sizeof(struct record) == 64, "struct record");

const volatile struct {
	bool records;
} config SEC(".rodata.config");

TABLE(rings, sizeof(struct ring));
TABLE(records, sizeof(struct record));

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(key_size, 4);
	__uint(value_size, 8);
	__uint(max_entries, TAGS);
} begins SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(key_size, 4);
	__uint(value_size, 8);
	__uint(max_entries, BINS);
} bins SEC(".maps");

static __always_inline void write(const struct request *rq, __u64 now, __u64 begin, __u32 error)
{
	__u32 cpu = bpf_get_smp_processor_id(), slot;
	struct ring *ring = bpf_map_lookup_elem(&rings, &cpu);
	struct record *record;
	__u64 position;

	if (!ring || ring->head - ring->tail >= SLOTS - 16)
		return;
	position = __sync_fetch_and_add(&ring->head, 1);
	slot = cpu * SLOTS + (position & (SLOTS - 1));
	record = bpf_map_lookup_elem(&records, &slot);
	if (!record)
		return;
	record->ts = now;
	record->begin = begin;
	record->sector = rq->__sector;
	record->bytes = rq->__data_len;
	record->tag = rq->tag;
	record->flags = rq->cmd_flags;
	record->error = error;
	record->unused[0] = record->unused[1] = 0;
	__sync_lock_test_and_set(&record->mark, position + 1);
}

SEC("tp_btf/block_rq_issue")
int floor_issue(__u64 *args)
{
	struct request *rq = (void *)args[0];
	__u32 tag = (__u32)rq->tag & (TAGS - 1);
	__u64 now = bpf_ktime_get_ns();
	__u64 *begin = bpf_map_lookup_elem(&begins, &tag);

	if (begin)
		*begin = now;
	if (config.records)
		write(rq, now, now, 0);
	return 0;
}

SEC("tp_btf/block_rq_complete")
int floor_complete(__u64 *args)
{
	struct request *rq = (void *)args[0];
	__u32 tag = (__u32)rq->tag & (TAGS - 1), bin = 0;
	__u64 now = bpf_ktime_get_ns(), latency;
	__u64 *begin = bpf_map_lookup_elem(&begins, &tag), *count;

	if (!begin)
		return 0;
	if (config.records) {
		write(rq, now, *begin, args[1]);
		return 0;
	}
	latency = now - *begin;
#define STEP(n)                                                                                    \
	if (latency >> n) {                                                                        \
		bin += n;                                                                          \
		latency >>= n;                                                                     \
	}
	STEP(32) STEP(16) STEP(8) STEP(4) STEP(2) STEP(1)
	count = bpf_map_lookup_elem(&bins, &bin);
	if (count)
		*count += 1;
	return 0;
}

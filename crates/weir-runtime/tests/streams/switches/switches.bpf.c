// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/*
 * Stream `switches`: a task leaves a processor. Its columns: the time it ran, and whether it now waits
 * or was preempted, as the scheduler counts in voluntary and involuntary context switches. Kernels
 * before 5.18 do not pass the state of the task and reject the program.
 *
 * Compile with `cargo xtask bpf`.
 */
#include "stream.bpf.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct task_struct {
	int pid;
	int tgid;
	int prio;
	char comm[16];
};
#pragma clang attribute pop

struct switched {
	struct event event;
	__u32 pid;
	__u32 tid;
	__u64 ran_ns;		/* UNKNOWN for the first task of a processor */
	__s32 nice;
	__u8 waits;		/* it is no longer runnable */
	__u8 spare[3];
	__u64 comm[2];
};

/* The time at which the current task of each processor began to run. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(key_size, 4);
	__uint(value_size, 8);
	__uint(max_entries, 1);
} began SEC(".maps");

SEC("tp_btf/sched_switch")
int on_switch(__u64 *ctx)
{
	bool preempted = ctx[0];
	__u32 state = ctx[3];
	struct task_struct *task = (struct task_struct *)ctx[1];
	__u64 *began_ns, now = bpf_ktime_get_ns();
	struct switched s = {};
	__u32 zero = 0;

	began_ns = bpf_map_lookup_elem(&began, &zero);
	if (!began_ns)
		return 0;
	s.ran_ns = *began_ns ? now - *began_ns : UNKNOWN;
	*began_ns = now;
	s.event.ts_ns = now;
	s.pid = task->tgid;
	s.tid = task->pid;
	s.nice = task->prio - 120;
	s.waits = !preempted && state;
	s.comm[0] = *(__u64 *)&task->comm[0];
	s.comm[1] = *(__u64 *)&task->comm[8];
	EMIT(s);
	return 0;
}

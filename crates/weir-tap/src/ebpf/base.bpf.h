/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * What every kernel program of weir uses: integer types, BPF helpers and the declaration of tables.
 * Sources: include/uapi/linux/bpf.h.
 */
#ifndef WEIR_BASE_BPF_H
#define WEIR_BASE_BPF_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef _Bool bool;

#define false 0
#define true 1

#define NULL ((void *)0)
#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int (*name)[value]
#define __type(name, value) value *name
#define __always_inline inline __attribute__((always_inline))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define barrier() asm volatile("" ::: "memory")

/*
 * Hides what is known of a value from the compiler: the verifier sees each check of its bounds, and a
 * pointer is read here, not where it is used.
 */
#define opaque(x) asm volatile("" : "+r"(x))

#define BPF_MAP_TYPE_ARRAY 2
#define BPF_MAP_TYPE_PERCPU_ARRAY 6
#define BPF_F_MMAPABLE (1U << 10)

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static __u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static __u32 (*bpf_get_smp_processor_id)(void) = (void *)8;
static __u64 (*bpf_get_current_pid_tgid)(void) = (void *)14;
static long (*bpf_get_current_comm)(void *buf, __u32 size) = (void *)16;
static __u64 (*bpf_get_current_cgroup_id)(void) = (void *)80;
static struct task_struct *(*bpf_get_current_task_btf)(void) = (void *)158;

/* CO-RE: whether the running kernel has a field (BPF_FIELD_EXISTS of libbpf). */
#define core_field_exists(field) __builtin_preserve_field_info(field, 2)

/*
 * An array that user space maps, so that it is read and written without system calls and privileges.
 * Its number of values is set before loading.
 */
#define TABLE(name, size)                                                                          \
	struct {                                                                                   \
		__uint(type, BPF_MAP_TYPE_ARRAY);                                                  \
		__uint(map_flags, BPF_F_MMAPABLE);                                                 \
		__uint(key_size, 4);                                                               \
		__uint(value_size, size);                                                          \
		__uint(max_entries, 1);                                                            \
	} name SEC(".maps")

/*
 * A separate function. It is hidden rather than static: its symbol, which the loader needs, stays in
 * the object, and the verifier still tracks the values of its arguments.
 */
#define SUBPROGRAM __attribute__((noinline, visibility("hidden")))

/* 1 if `a` is greater than `b`, without a branch: the verifier would follow each. Both below 2^63. */
static __always_inline __u64 exceeds(__u64 a, __u64 b)
{
	return (b - a) >> 63;
}

/* A value that is not known. */
#define UNKNOWN (~0ULL)

/* The number by which a value is sampled, equal to that of weir_model::spread. */
static __always_inline __u32 spread(__u64 x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdULL;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53ULL;
	x ^= x >> 33;
	return x >> 32;
}

#endif

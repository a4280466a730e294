/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Finds the virtual disks at the sectors of a request, as a number that user space has assigned. So the
 * requests of a disk of the host that several VMs share are folded into groups of each virtual disk.
 *
 * User space writes the extents of all disks into the halves of the tables that are not in use, and then the
 * ranges, each with one store. It writes into a half again once each processor was observed not to be busy
 * (groups.bpf.h), since a range is read only while it is.
 */
#ifndef WEIR_EXTENTS_BPF_H
#define WEIR_EXTENTS_BPF_H

#include "extents.h"
#include "request.bpf.h"

/* Of each disk, by its row in the counters. */
TABLE(extent_ranges, sizeof(__u64));
TABLE(extent_parts, sizeof(__u64));
TABLE(extent_lines, sizeof(struct extent_line));

/* The number of the VM of each set; 0 if it has disks of several, or none. */
TABLE(owner_vms, sizeof(__u64));

/* The processes of which user space knows whether they work for a VM, with enum process as the index. */
TABLE(processes, sizeof(struct known));

static __always_inline struct extent_line *line_at(__u32 line)
{
	return bpf_map_lookup_elem(&extent_lines, &line);
}

/* What is known of the process of a request. A kernel thread that is not known is that of no VM. */
static __always_inline __u32 process_of(const struct io *io)
{
	__u32 process = marks_in(&processes, config.process_mask, io->pid).index;

	if (!process && (!io->pid || io->flags & FLAG_KERNEL))
		return PROCESS_OTHER;
	return process;
}

/* False if a process of a VM is at disks of another VM: the sectors may be its own by now. */
static __always_inline bool may_own(__u32 process, __u32 owners)
{
	__u64 *vm;

	if (process == PROCESS_OTHER)
		return true;
	vm = bpf_map_lookup_elem(&owner_vms, &owners);
	return !vm || !*vm || *vm == process;
}

/* The part with a sector of a disk; the last one has all later sectors too. */
static __always_inline __u64 *part_at(__u64 range, __u64 sector)
{
	__u64 last = (1ULL << (range >> RANGE_LOG_PARTS & 31)) - 1;
	__u64 part = sector >> (range & 63);
	__u32 at;

	if (part > last)
		part = last;
	at = (range >> RANGE_PART & 0x7fffffff) + part;
	return bpf_map_lookup_elem(&extent_parts, &at);
}

/* The set of the disks that have all `bytes` bytes from `sector` on, for a request of `process`. */
SUBPROGRAM __u32 owners_of(__u32 row, __u64 sector, __u32 bytes, __u32 process)
{
	__u64 *word = bpf_map_lookup_elem(&extent_ranges, &row), range, later, at;
	__u32 first, count, half, step, i, owners;
	struct extent_line *line;

	if (!word || process == PROCESS_UNKNOWN)
		return OWNERS_UNKNOWN;
	range = *(volatile __u64 *)word;
	if (!(range & RANGE_LINES))
		return may_own(process, range) ? range : OWNERS_UNKNOWN;
	if (sector == UNKNOWN)
		return OWNERS_NONE;
	word = part_at(range, sector);
	if (!word)
		return OWNERS_UNKNOWN;
	at = *word;
	first = (range >> RANGE_LINE & ((1 << (RANGE_PART - RANGE_LINE)) - 1)) + (__u32)at;
	count = at >> PART_COUNT;
	for (step = 0; step <= LINES_LOG && count > 1; step++) {
		half = count / 2;
		line = line_at(first + half);
		if (!line)
			return OWNERS_UNKNOWN;
		later = exceeds(line->extents[0] >> OWNERS_BITS, sector);
		first += half & ((__u32)later - 1);
		count -= half;
	}
	line = line_at(first);
	if (!line)
		return OWNERS_UNKNOWN;
	at = 0;
#pragma unroll
	for (i = 1; i < LINE_EXTENTS; i++)
		at += 1 - exceeds(line->extents[i] >> OWNERS_BITS, sector);
	later = at + 1;
	opaque(at);
	opaque(later);
	if (sector + (bytes >> 9) > line->extents[later & 7] >> OWNERS_BITS)
		return OWNERS_UNKNOWN;
	owners = line->extents[at & 7] & ((1 << OWNERS_BITS) - 1);
	return may_own(process, owners) ? owners : OWNERS_UNKNOWN;
}

#endif

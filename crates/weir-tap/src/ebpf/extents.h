/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The extents of virtual disks on the disks of the host: what extents.bpf.h and the writer in extents.rs
 * share. Both sides assert the sizes.
 */
#ifndef WEIR_EXTENTS_H
#define WEIR_EXTENTS_H

/* Extents of a line. */
#define LINE_EXTENTS 7

/* log2 of the lines of one disk at most. */
#define LINES_LOG 16

/*
 * The extents of a disk, as one word. Without RANGE_LINES it is the number of the set of the whole disk.
 * Otherwise the disk is divided into equal parts, a power of two of them: from the lowest bit, log2 of the
 * sectors of a part, log2 of the number of parts, the first line, and at RANGE_PART the first part.
 */
#define RANGE_LOG_PARTS 6
#define RANGE_LINE 11
#define RANGE_PART 32
#define RANGE_LINES (1ULL << 63)

/* A part: the line of its first sector, from the disk's first line on; and above the number of its lines. */
#define PART_COUNT 32

/*
 * Consecutive extents of a disk, ascending, in one cache line: the first sector above OWNERS_BITS, and the
 * number of the set of virtual disks there. An extent ends where the next one begins; the last word has the
 * beginning of the first extent of the next line.
 */
struct extent_line {
	__u64 extents[LINE_EXTENTS + 1];
};
_Static_assert(sizeof(struct extent_line) == 64, "struct extent_line");

#define OWNERS_BITS 16

/* Numbers of sets. The others have no meaning here. */
enum owners {
	OWNERS_UNKNOWN = 0,	/* user space decides about each request */
	OWNERS_NONE = 1,	/* no virtual disk, or no sector */
};

/* What is known of a process. Greater numbers are those of VMs. */
enum process {
	PROCESS_UNKNOWN = 0,	/* it may belong to a new VM: user space decides */
	PROCESS_OTHER = 1,	/* of no VM, or of several */
};

#endif

/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Changes of the space of a file: truncations and punched holes. The part of `fileio.bpf.c` after its
 * fsyncs.
 *
 *  - ext4 and xfs report the beginning and the end of a truncation, and the new size.
 *  - btrfs reports each extent that it examines: the truncation begins with the first one and ends with
 *    the system call.
 *  - ext4 and xfs report the beginning of a punched hole. It ends with the system call, which has its
 *    parameters. btrfs reports nothing: such calls are counted.
 *
 * The bytes of a truncation are the space that was allocated to the file before it and not after it.
 */
#ifndef WEIR_CHANGE_BPF_H
#define WEIR_CHANGE_BPF_H

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct counter_of_uses {
	int counter;
};

/* In inode: CO-RE ignores the suffix. */
struct inode___space {
	__s64 i_size;
	__u64 i_blocks;		/* of 512 bytes */
	struct counter_of_uses i_count;
};

struct super_block___space {
	__u8 s_blocksize_bits;
};

struct btrfs_inode {
	struct inode vfs_inode;
};

struct pt_regs;

/* The registers of a system call that ends. */
struct pt_regs___x86 {
	unsigned long orig_ax;
	unsigned long di;
	unsigned long si;
	unsigned long dx;
	unsigned long r10;
};

struct pt_regs___arm64 {
	__u64 regs[31];
	__u64 orig_x0;
	__s32 syscallno;
};

/* The files that a task has open. */
struct fdtable {
	unsigned int max_fds;
	void *fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct task_struct___files {
	struct files_struct *files;
};

#pragma clang attribute pop

/* arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h, include/uapi/linux/falloc.h */
#define FALLOCATE_X86 285
#define FALLOCATE_ARM64 47
#define FALLOC_FL_PUNCH_HOLE 2

/* The space that is allocated to a file, in bytes. */
static __always_inline __u64 space_of(const struct inode *inode)
{
	return ((struct inode___space *)inode)->i_blocks << 9;
}

/* Prepares the row of a change; NULL if it cannot be followed. */
static __always_inline struct doing *begin_change(struct inode *inode, char op)
{
	struct doing *doing = doing_now(BPF_LOCAL_STORAGE_GET_F_CREATE);
	struct file_io io = {};

	if (!doing) {
		count(TABLE_FULL);
		return NULL;
	}
	/* The parameters of a hole on xfs come with the end of the call, if it is one. */
	if (doing->change.op && doing->change.bytes != UNKNOWN)
		count(UNSEEN_END);
	begin(&io, inode->i_sb);
	of_file(&io, inode, dentry_of(inode));
	io.op = op;
	doing->changed = number_of(inode);
	doing->change = io;
	return doing;
}

/* `space` is what is allocated now: the truncation freed the difference. */
static __always_inline void end_change(struct doing *doing, __u64 space)
{
	struct file_io *change = &doing->change;

	if (change->op == 't')
		change->bytes = change->bytes > space ? change->bytes - space : 0;
	finish(change);
	change->op = 0;
}

/* ---- Truncations --------------------------------------------------------------------------- */

SEC("tp_btf/ext4_truncate_enter")
int on_ext4_truncate(__u64 *ctx)
{
	struct inode *inode = (struct inode *)ctx[0];
	struct doing *doing = begin_change(inode, 't');

	if (doing) {
		doing->change.offset = ((struct inode___space *)inode)->i_size;
		doing->change.bytes = space_of(inode);
	}
	return 0;
}

SEC("tp_btf/ext4_truncate_exit")
int on_ext4_truncated(__u64 *ctx)
{
	struct inode *inode = (struct inode *)ctx[0];
	struct doing *doing = doing_now(0);

	if (doing && doing->change.op == 't' && doing->changed == number_of(inode))
		end_change(doing, space_of(inode));
	return 0;
}

/* xfs does not keep i_blocks of the inode. */
static __always_inline __u64 space_of_xfs(__u64 own, const struct inode *inode)
{
	return LOAD(xfs_inode, own, i_nblocks)
	       << ((struct super_block___space *)inode->i_sb)->s_blocksize_bits;
}

SEC("tp_btf/xfs_itruncate_extents_start")
int on_xfs_truncate(__u64 *ctx)
{
	struct inode *inode = inode_of_xfs(ctx[0]);
	struct doing *doing = begin_change(inode, 't');

	if (doing) {
		doing->change.offset = ctx[1];
		doing->change.bytes = space_of_xfs(ctx[0], inode);
	}
	return 0;
}

SEC("tp_btf/xfs_itruncate_extents_end")
int on_xfs_truncated(__u64 *ctx)
{
	struct inode *inode = inode_of_xfs(ctx[0]);
	struct doing *doing = doing_now(0);

	if (doing && doing->change.op == 't' && doing->changed == number_of(inode))
		end_change(doing, space_of_xfs(ctx[0], inode));
	return 0;
}

/* An extent of a file that btrfs truncates or removes, from the last to the first. */
static __always_inline int on_btrfs_extent(__u64 own)
{
	struct inode *inode = CAST(inode, own + OFFSET_OF(btrfs_inode, vfs_inode));
	struct inode___space *space = (struct inode___space *)inode;
	struct doing *doing = doing_now(BPF_LOCAL_STORAGE_GET_F_CREATE);
	bool is_removed;

	/* An fsync truncates its log, which is no change of the file. */
	if (!own || !doing || doing->sync.op || doing->change.op)
		return 0;
	is_removed = !space->i_count.counter;
	doing = begin_change(inode, 't');
	if (!doing)
		return 0;
	doing->change.offset = is_removed ? 0 : space->i_size;
	doing->change.bytes = space_of(inode);
	if (is_removed)
		doing->changed = 0;
	if (makes_no_call()) {
		doing->change.op = 0;
		count(UNSEEN_END);
	}
	return 0;
}

SEC("tp_btf/btrfs_truncate_show_fi_regular")
int on_btrfs_regular(__u64 *ctx)
{
	return on_btrfs_extent(ctx[0]);
}

SEC("tp_btf/btrfs_truncate_show_fi_inline")
int on_btrfs_inline(__u64 *ctx)
{
	return on_btrfs_extent(ctx[0]);
}

/* ---- Holes --------------------------------------------------------------------------------- */

/* A hole begins; `offset` and `bytes` are UNKNOWN if its system call has to report them. */
static __always_inline void begin_hole(struct inode *inode, __u64 offset, __u64 bytes)
{
	struct doing *doing = begin_change(inode, 'p');

	if (!doing)
		return;
	doing->change.offset = offset;
	doing->change.bytes = bytes;
	if (makes_no_call()) {
		doing->change.op = 0;
		count(UNSEEN_END);
	}
}

SEC("tp_btf/ext4_punch_hole")
int on_ext4_hole(__u64 *ctx)
{
	begin_hole((struct inode *)ctx[0], ctx[1], ctx[2]);
	return 0;
}

SEC("tp_btf/xfs_free_file_space")
int on_xfs_hole(__u64 *ctx)
{
	begin_hole(inode_of_xfs(ctx[0]), UNKNOWN, UNKNOWN);
	return 0;
}

/* ---- The end of the system call ------------------------------------------------------------ */

/* The call of fallocate that punches a hole. */
struct hole_call {
	__u64 file;		/* its number in the process */
	__u64 offset;
	__u64 bytes;
};

/* Whether the system call that ends is one; arguments of x86-64 and arm64 are known. */
static __always_inline bool is_hole_call(struct hole_call *call, struct pt_regs *regs)
{
	struct pt_regs___x86 *x86 = (struct pt_regs___x86 *)regs;
	struct pt_regs___arm64 *arm64 = (struct pt_regs___arm64 *)regs;

	if (core_field_exists(x86->orig_ax)) {
		if (x86->orig_ax != FALLOCATE_X86 || !(x86->si & FALLOC_FL_PUNCH_HOLE))
			return false;
		call->file = x86->di;
		call->offset = x86->dx;
		call->bytes = x86->r10;
		return true;
	}
	if (core_field_exists(arm64->syscallno)) {
		if (arm64->syscallno != FALLOCATE_ARM64 ||
		    !(arm64->regs[1] & FALLOC_FL_PUNCH_HOLE))
			return false;
		call->file = arm64->orig_x0;
		call->offset = arm64->regs[2];
		call->bytes = arm64->regs[3];
		return true;
	}
	return false;
}

/* True if the file with this number is on a file system with a device, which a memory file is not. */
static __always_inline bool is_on_device(__u64 number)
{
	struct task_struct___files *task = (void *)bpf_get_current_task_btf();
	struct fdtable *table = task->files->fdt;
	struct super_block *sb;
	__u64 file = 0;

	if (number >= table->max_fds)
		return false;
	bpf_probe_read_kernel(&file, 8, (const void *)(number_of(table->fd) + 8 * number));
	sb = CAST(file, file)->f_inode->i_sb;
	/* With several devices, btrfs has none here. */
	return sb->s_bdev || sb->s_magic == BTRFS_SUPER_MAGIC;
}

static __always_inline void end_change_with_call(struct doing *doing, struct pt_regs *regs,
						 __s64 result)
{
	struct hole_call call = {};
	bool is_hole = is_hole_call(&call, regs);
	struct file_io *change;
	__u64 space = 0;

	if (!doing || !doing->change.op) {
		if (is_hole && !result && is_on_device(call.file))
			count(UNSEEN_BEGIN);
		return;
	}
	change = &doing->change;
	if (change->op == 'p' && is_hole) {
		change->offset = call.offset;
		change->bytes = call.bytes;
	} else if (change->bytes == UNKNOWN) {
		/* xfs frees space for other calls as well. */
		change->op = 0;
		return;
	} else if (doing->changed) {
		space = space_of(CAST(inode, doing->changed));
	}
	change->status = result < 0 && result > -4096 ? result : 0;
	end_change(doing, space);
}

#endif

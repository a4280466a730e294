/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Files: the file of a bio, and the path of a file.
 *
 * A path is resolved once. Its key is a hash of the inode and of the names of the file and of all
 * directories above it, so that a rename or an unlink gives another key; a table has the names that
 * belong to a key, which user space joins. The dentries of a file end at the root of its file system; the
 * path continues with the oldest mount that shows the file. Mounts of other mount namespaces are copies
 * of older ones, so this is the host's name of the file; a file system that only another namespace
 * has mounted has the path in that namespace.
 *
 * Structures declare only the fields in use (CO-RE). Kernel 6.6 and newer.
 * Sources: include/linux/{fs,dcache,mount,mm_types,bio,blk_types}.h, fs/mount.h.
 */
#ifndef WEIR_FILE_BPF_H
#define WEIR_FILE_BPF_H

#include "cgroup.bpf.h"

/* ---- Kernel types -------------------------------------------------------------------------- */

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct hlist_bl_node {
	void *pprev;
};

struct list_head {
	struct list_head *next;
};

struct hlist_node {
	struct hlist_node *next;
};

struct hlist_head {
	struct hlist_node *first;
};

struct qstr {
	__u64 hash_len;
	__u32 len;
	void *name;
};

struct dentry {
	struct hlist_bl_node d_hash;
	struct dentry *d_parent;
	struct qstr d_name;
	struct inode *d_inode;
	union {
		struct hlist_node d_alias;
	} d_u;
};

/* From 7.1 on, the union has no name. CO-RE ignores the suffix. */
struct dentry___from_7_1 {
	struct hlist_node d_alias;
};

struct mnt_namespace {
};

struct vfsmount {
	struct dentry *mnt_root;
};

struct mount {
	struct mount *mnt_parent;
	struct dentry *mnt_mountpoint;
	struct vfsmount mnt;
	struct mount *mnt_next_for_sb;
	struct mnt_namespace *mnt_ns;
	int mnt_id;
	__u64 mnt_id_unique;
};

/* Before 6.17 the mounts of a file system are a list, the oldest first. */
struct mount___list {
	struct list_head mnt_instance;
};

struct super_block {
	__u32 s_dev;
	unsigned long s_magic;
	struct mount *s_mounts;
	struct block_device *s_bdev;
};

struct super_block___list {
	struct list_head s_mounts;
};

struct inode {
	unsigned short i_mode;
	struct super_block *i_sb;
	unsigned long i_ino;
	struct address_space *i_mapping;
	struct hlist_head i_dentry;
};

struct path {
	struct dentry *dentry;
};

struct file {
	struct inode *f_inode;
	__u32 f_mode;
	struct path f_path;
};

/* fs/file_table.c: a file that a file system such as overlayfs opened for one of its own. Since 6.7 it
 * has the path of the latter besides its own; before, its own besides that of the latter. */
struct backing_file {
	struct path user_path;
	struct path real_path;
};

struct address_space {
	struct inode *host;
};

struct page {
	unsigned long compound_head;
};

/* From 7.0 on. CO-RE ignores the suffix. */
struct page___from_7_0 {
	unsigned long compound_info;
};

struct folio {
	struct address_space *mapping;
	unsigned long index;
};

struct bio_vec {
};

/* From 7.3 on, bi_bvec_done has this name. CO-RE ignores the suffix. */
struct bvec_iter___from_7_3 {
	__u32 bi_offset;
};

struct bio___from_7_3 {
	struct bvec_iter___from_7_3 bi_iter;
};

/* The programs of the block tap have these types, with more fields. */
#ifndef WEIR_KERNEL_BPF_H
struct block_device {
	__u32 bd_dev;
	void *bd_holder;
};

struct bvec_iter {
	__u64 bi_sector;
	__u32 bi_size;
	__u32 bi_idx;
	__u32 bi_bvec_done;
};

struct bio {
	struct bio *bi_next;
	struct block_device *bi_bdev;
	__u32 bi_opf;
	__u8 bi_status;
	struct bvec_iter bi_iter;
	void *bi_private;
	unsigned short bi_vcnt;
	struct bio_vec *bi_io_vec;
};
#endif

#pragma clang attribute pop

extern void *bpf_rdonly_cast(const void *address, __u32 type) __attribute__((section(".ksyms")));

/*
 * `address` as a pointer to a structure, which may be read and nothing else; bad addresses read as 0. For
 * an argument of a tracepoint it saves time: where a pointer is read from one, the verifier searches all
 * types of the kernel, on each path that it follows.
 */
#define CAST(type, address)                                                                        \
	((struct type *)bpf_rdonly_cast((const void *)(address),                                   \
					__builtin_btf_type_id(*(struct type *)NULL, 1)))

/* The byte offset of a field, and the size of a type, in the running kernel. */
#define OFFSET_OF(type, field) __builtin_preserve_field_info(((struct type *)0)->field, 0)
#define SIZE_OF(type) __builtin_preserve_type_info(*(struct type *)NULL, 1)

static long (*bpf_probe_read_kernel)(void *to, __u32 bytes, const void *from) = (void *)113;
static long (*bpf_loop)(__u32 count, void *step, void *context, __u64 flags) = (void *)181;

/* A pointer as a number: the verifier accepts no arithmetic on pointers into the kernel. */
static __always_inline __u64 number_of(const void *pointer)
{
	const void *volatile kept = pointer;
	__u64 number = 0;

	bpf_probe_read_kernel(&number, sizeof(number), (const void *)&kept);
	return number;
}

/* A field of 8 bytes of the structure at `address`, as a number. */
#define LOAD(type, address, field)                                                                 \
	({                                                                                         \
		__u64 loaded_ = 0;                                                                 \
		bpf_probe_read_kernel(&loaded_, 8,                                                 \
				      (const void *)((address) + OFFSET_OF(type, field)));         \
		loaded_;                                                                           \
	})

/* include/linux/stat.h, include/linux/page-flags.h, include/linux/mm.h */
#define S_IFMT 0170000
#define S_IFREG 0100000
#define MAPPING_FLAGS 3
#define PAGE_SHIFT 12
/* include/linux/fs.h: bit 25 before 6.14, bit 24 since; include/uapi/linux/magic.h */
#define FMODE_MAY_BE_BACKING (3 << 24)
#define OVERLAYFS_SUPER_MAGIC 0x794c7630

static __always_inline bool is_regular(const struct inode *inode)
{
	return (inode->i_mode & S_IFMT) == S_IFREG;
}

/* ---- The table of paths -------------------------------------------------------------------- */

#define PATH_SLOTS 4096		/* a power of two */
#define PATH_WAYS 4
#define PATH_DEPTH 48		/* names of a path */
#define PATH_BYTES 992
#define NAME_BYTES_MAX 255

/*
 * The names of a path from the last to the first, each followed by a byte 0. User space sets `seen` to
 * the key after it has read them; the slot is then free for another path.
 */
struct path_slot {
	__u64 key;		/* 0: free */
	__u64 complete;		/* the key, once the names are there */
	__u64 seen;
	__u32 bytes;		/* 0: the path is unknown */
	__u32 deleted;		/* the file has been unlinked */
	char names[PATH_BYTES];
};
_Static_assert(sizeof(struct path_slot) == 1024, "struct path_slot");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(key_size, 4);
	__uint(value_size, sizeof(struct path_slot));
	__uint(max_entries, PATH_SLOTS);
} paths SEC(".maps");

static __always_inline __u64 mix(__u64 hash, __u64 value)
{
	hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
	return hash ^ hash >> 29;
}

#define HAS_NEXT core_field_exists(((struct mount *)0)->mnt_next_for_sb)

/* The first mount of a file system, the next one, and what follows the last one. */
static __always_inline __u64 first_mount(struct super_block *sb)
{
	if (HAS_NEXT)
		return number_of(sb->s_mounts);
	return number_of(((struct super_block___list *)sb)->s_mounts.next) -
	       OFFSET_OF(mount___list, mnt_instance);
}

static __always_inline __u64 next_mount(__u64 mount)
{
	if (HAS_NEXT)
		return LOAD(mount, mount, mnt_next_for_sb);
	return LOAD(mount___list, mount, mnt_instance.next) - OFFSET_OF(mount___list, mnt_instance);
}

static __always_inline __u64 end_of_mounts(struct super_block *sb)
{
	if (HAS_NEXT)
		return 0;
	return number_of(&((struct super_block___list *)sb)->s_mounts) -
	       OFFSET_OF(mount___list, mnt_instance);
}

/* A number that grows with each mount. */
static __always_inline __u64 id_of_mount(__u64 address)
{
	struct mount *mount = CAST(mount, address);

	if (core_field_exists(mount->mnt_id_unique))
		return mount->mnt_id_unique;
	return mount->mnt_id;
}

/* The search for the oldest mount that shows a file: each step looks at one directory above it. */
struct mount_search {
	__u64 leaf;		/* the file's dentry */
	__u64 dentry;		/* this step's */
	__u64 mount;		/* this step's */
	__u64 end;
	__u64 found;
	__u64 found_id;
};

#define MOUNT_STEPS 4096

SUBPROGRAM long step_to_mount(__u32 step __attribute__((unused)), struct mount_search *s)
{
	__u64 dentry = s->dentry, mount = s->mount, namespace, parent;

	if (!mount || mount == s->end)
		return 1;
	if (dentry == LOAD(mount, mount, mnt.mnt_root)) {
		/* A mount of the kernel itself has an error as its namespace. */
		namespace = LOAD(mount, mount, mnt_ns);
		if (namespace && namespace < -4095ULL && id_of_mount(mount) < s->found_id) {
			s->found = mount;
			s->found_id = id_of_mount(mount);
		}
	} else {
		parent = LOAD(dentry, dentry, d_parent);
		if (parent && parent != dentry) {
			s->dentry = parent;
			return 0;
		}
	}
	s->mount = next_mount(mount);
	s->dentry = s->leaf;
	return 0;
}

/* The collection of names: each step adds one, or continues below the mount point. */
struct name_walk {
	__u64 dentry;
	__u64 mount;
	__u32 slot;
	__u32 bytes;
	__u32 complete;
	__u32 spare;
};

SUBPROGRAM long step_to_name(__u32 step __attribute__((unused)), struct name_walk *w)
{
	__u64 dentry = w->dentry, parent;
	struct path_slot *slot;
	__u32 bytes, at = w->bytes;

	if (dentry == LOAD(mount, w->mount, mnt.mnt_root)) {
		parent = LOAD(mount, w->mount, mnt_parent);
		if (parent == w->mount) {
			w->complete = true;
			return 1;
		}
		w->dentry = LOAD(mount, w->mount, mnt_mountpoint);
		w->mount = parent;
		return 0;
	}
	parent = LOAD(dentry, dentry, d_parent);
	slot = bpf_map_lookup_elem(&paths, &w->slot);
	bytes = CAST(dentry, dentry)->d_name.len;
	if (!slot || !parent || parent == dentry || bytes > NAME_BYTES_MAX ||
	    at > PATH_BYTES - NAME_BYTES_MAX - 1)
		return 1;
	bpf_probe_read_kernel(slot->names + at, bytes, (const void *)LOAD(dentry, dentry, d_name.name));
	slot->names[at + bytes] = 0;
	w->bytes = at + bytes + 1;
	w->dentry = parent;
	return 0;
}

/* Finds the names for a key and puts them into a slot. */
SUBPROGRAM int write_path(__u64 key, struct dentry *leaf, struct super_block *sb, __u32 at)
{
	struct mount_search search = {
		.leaf = number_of(leaf),
		.dentry = number_of(leaf),
		.mount = first_mount(sb),
		.end = end_of_mounts(sb),
		.found_id = UNKNOWN,
	};
	struct name_walk walk = { .dentry = search.leaf, .slot = at };
	struct path_slot *slot;

	bpf_loop(MOUNT_STEPS, step_to_mount, &search, 0);
	walk.mount = search.found;
	if (walk.mount)
		bpf_loop(PATH_DEPTH, step_to_name, &walk, 0);
	slot = bpf_map_lookup_elem(&paths, &at);
	if (!slot)
		return 0;
	slot->bytes = walk.complete ? walk.bytes : 0;
	slot->deleted = !leaf->d_hash.pprev;
	/* Atomic, so that it follows the names. */
	__sync_lock_test_and_set(&slot->complete, key);
	return 0;
}

/* Ensures that the table has the path of this key, or that it will have. */
static __always_inline void keep_path(__u64 key, struct dentry *leaf, struct super_block *sb)
{
	__u32 home = key >> 40, at, way;

#pragma unroll
	for (way = 0; way < PATH_WAYS; way++) {
		struct path_slot *slot;

		at = (home + way) & (PATH_SLOTS - 1);
		slot = bpf_map_lookup_elem(&paths, &at);
		if (slot && slot->key == key)
			return;
	}
#pragma unroll
	for (way = 0; way < PATH_WAYS; way++) {
		struct path_slot *slot;
		__u64 old;

		at = (home + way) & (PATH_SLOTS - 1);
		slot = bpf_map_lookup_elem(&paths, &at);
		if (!slot)
			return;
		old = slot->key;
		if ((!old || slot->seen == old) &&
		    __sync_val_compare_and_swap(&slot->key, old, key) == old) {
			write_path(key, leaf, sb, at);
			return;
		}
	}
}

/* The key of the path of `leaf`; 0 if the file has no name. */
SUBPROGRAM __u64 path_of(struct inode *inode, struct dentry *leaf)
{
	struct super_block *sb = inode->i_sb;
	__u64 key = mix(inode->i_ino, sb->s_dev);
	struct dentry *dentry = leaf, *parent;
	struct mount *newest;
	__u32 i;

	if (!leaf)
		return 0;
	/* Each mount and each move of a mount changes the key as well. */
	newest = CAST(mount, first_mount(sb));
	key = mix(key, core_field_exists(newest->mnt_id_unique) ? newest->mnt_id_unique : 0);
	key = mix(key, newest->mnt_id);
	key = mix(key, newest->mnt_mountpoint->d_name.hash_len);
	key = mix(key, newest->mnt_parent->mnt_id);
	key = mix(key, !leaf->d_hash.pprev);
	for (i = 0; i < PATH_DEPTH; i++) {
		parent = dentry->d_parent;
		key = mix(key, dentry->d_name.hash_len);
		if (parent == dentry)
			break;
		dentry = parent;
	}
	key |= !key;
	keep_path(key, leaf, sb);
	return key;
}

static __always_inline bool is_overlaid(const struct dentry *dentry)
{
	return dentry->d_inode->i_sb->s_magic == OVERLAYFS_SUPER_MAGIC;
}

/* The name in an overlayfs by which a file was opened that overlayfs opened below; NULL without one. */
static __always_inline struct dentry *dentry_opened(struct file *file)
{
	struct dentry *dentry = file->f_path.dentry;

	if (core_field_exists(((struct backing_file *)0)->user_path)) {
		/* Other files may have the flag: what follows them is no dentry. */
		if (!(file->f_mode & FMODE_MAY_BE_BACKING))
			return NULL;
		dentry = CAST(backing_file, number_of(file))->user_path.dentry;
	}
	return is_overlaid(dentry) ? dentry : NULL;
}

/* The name of a file in the file system that has its data. */
static __always_inline struct dentry *dentry_of_file(struct file *file)
{
	struct dentry *dentry = file->f_path.dentry;

	if (core_field_exists(((struct backing_file *)0)->real_path) && is_overlaid(dentry))
		return CAST(backing_file, number_of(file))->real_path.dentry;
	return dentry;
}

/* The name under which an inode is known: its first dentry. */
static __always_inline struct dentry *dentry_of(struct inode *inode)
{
	__u64 alias = number_of(inode->i_dentry.first), offset;

	if (core_field_exists(((struct dentry *)0)->d_u))
		offset = OFFSET_OF(dentry, d_u.d_alias);
	else
		offset = OFFSET_OF(dentry___from_7_1, d_alias);
	return alias ? CAST(dentry, alias - offset) : NULL;
}

/* ---- The file of a bio --------------------------------------------------------------------- */

/* A segment of a bio, as include/linux/bvec.h has it since 2.5. */
struct segment {
	__u64 page;
	__u32 bytes;
	__u32 offset;
};

/* Where a bio's data is in the page cache. */
struct cached {
	struct inode *inode;	/* NULL: not in the page cache */
	__u64 offset;
	bool has_gaps;		/* some parts are not adjacent in the file */
};

/*
 * The first page of the folio of a page. Of another page than the first, the field has bit 0, and either
 * the address of the first or, from 7.0 on, the mask that makes it from the page's own address
 * (compound_head in include/linux/page-flags.h).
 */
static __always_inline __u64 head_of(__u64 page)
{
	__u64 info, size;

	if (core_field_exists(((struct page *)0)->compound_head))
		info = LOAD(page, page, compound_head);
	else
		info = LOAD(page___from_7_0, page, compound_info);
	if (!(info & 1))
		return page;
	/* A mask is the negative of a power of 2: the bytes of the structures of a folio's pages. */
	size = -(info - 1);
	return size & (size - 1) || size >> 32 ? info - 1 : page & info;
}

/* The mapping of a segment's page, 0 if it has none, and the segment's offset in the file. */
static __always_inline __u64 mapping_of(const struct segment *segment, __u64 *offset)
{
	__u64 folio = head_of(segment->page);
	__u64 mapping = LOAD(folio, folio, mapping);
	__u64 page = (segment->page - folio) / SIZE_OF(page);

	*offset = ((CAST(folio, folio)->index + page) << PAGE_SHIFT) + segment->offset;
	return mapping & MAPPING_FLAGS ? 0 : mapping;
}

static __always_inline struct cached cached_by(struct bio *bio)
{
	__u64 segments = number_of(bio->bi_io_vec), mapping, last;
	__u32 segment_count = bio->bi_vcnt;
	struct segment segment = {};
	struct cached found = {};

	bpf_probe_read_kernel(&segment, sizeof(segment),
			      (const void *)(segments + sizeof(segment) * bio->bi_iter.bi_idx));
	mapping = mapping_of(&segment, &found.offset);
	if (!mapping)
		return found;
	found.inode = CAST(address_space, mapping)->host;
	if (core_field_exists(bio->bi_iter.bi_bvec_done))
		found.offset += bio->bi_iter.bi_bvec_done;
	else
		found.offset += ((struct bio___from_7_3 *)bio)->bi_iter.bi_offset;
	/* A clone shares the segments of another bio and does not have their number. */
	if (segment_count > 1) {
		bpf_probe_read_kernel(&segment, sizeof(segment),
				      (const void *)(segments +
						     sizeof(segment) * (segment_count - 1)));
		if (mapping_of(&segment, &last) == mapping)
			found.has_gaps = last + segment.bytes - found.offset != bio->bi_iter.bi_size;
	}
	return found;
}

#endif

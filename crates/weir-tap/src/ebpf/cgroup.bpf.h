/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The control group that a bio is charged to.
 * Sources: include/linux/{blk_types,cgroup-defs,kernfs}.h, block/blk-cgroup.h.
 */
#ifndef WEIR_CGROUP_BPF_H
#define WEIR_CGROUP_BPF_H

#include "base.bpf.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct kernfs_node {
	__u64 id;
};

struct cgroup {
	struct kernfs_node *kn;
};

struct cgroup_subsys_state {
	struct cgroup *cgroup;
};

struct blkcg {
	struct cgroup_subsys_state css;
};

struct blkcg_gq {
	struct blkcg *blkcg;
};

/* With CONFIG_BLK_CGROUP. */
struct bio___cgroup {
	struct blkcg_gq *bi_blkg;
};

#pragma clang attribute pop

struct bio;

/* The id of the bio's cgroup; 0 if the bio has none. */
static __always_inline __u64 cgroup_of(struct bio *bio)
{
	struct bio___cgroup *charged = (struct bio___cgroup *)bio;
	struct blkcg_gq *blkg;

	if (!bio || !core_field_exists(charged->bi_blkg))
		return 0;
	blkg = charged->bi_blkg;
	return blkg ? blkg->blkcg->css.cgroup->kn->id : 0;
}

#endif

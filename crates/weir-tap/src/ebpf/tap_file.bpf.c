// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/*
 * The kernel side of the live tap with the file of each request: the programs of tap.bpf.c, and what
 * columns `file` and `inode` need, which is loaded only if a query reads them. Kernel 6.6 and newer.
 *
 * Compile with `cargo xtask bpf`.
 */
#define WITH_FILES
#include "tap.bpf.c"

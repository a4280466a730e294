/* The unwinder of gcc for glibc asks this function of glibc, which musl does not have, for the unwind
 * tables of the object at an address. A static program is one object. */
#define _GNU_SOURCE
#include <link.h>
#include <stddef.h>

/* As in glibc's <dlfcn.h> for x86-64 and aarch64. */
struct dl_find_object {
	unsigned long long flags;
	void *start;
	void *end;
	void *link_map;
	void *eh_frame;
	unsigned long long reserved[7];
};

static int set_eh_frame(struct dl_phdr_info *info, size_t size, void *data)
{
	struct dl_find_object *found = data;

	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		if (info->dlpi_phdr[i].p_type == PT_GNU_EH_FRAME) {
			found->eh_frame = (void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
			return 1;
		}
	}
	return 0;
}

int _dl_find_object(void *address, struct dl_find_object *found)
{
	(void)address;
	return dl_iterate_phdr(set_eh_frame, found) ? 0 : -1;
}

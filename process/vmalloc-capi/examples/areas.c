/* Large memory from libvmalloc: a zeroed area that grows in place if possible, and is freed.
 *
 * cc areas.c $(pkg-config --cflags --libs vmalloc) && ./a.out
 */
#include <vmalloc.h>

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
	const size_t size = (size_t)32 << 20;
	unsigned char *area = vzalloc(size);
	unsigned char *grown;

	if (!area) {
		perror("vzalloc");
		return 1;
	}
	if (area[0] || area[size - 1]) {
		fprintf(stderr, "new memory is not zeros\n");
		return 1;
	}
	memset(area, 42, size);

	grown = vrealloc(area, 3 * size);
	if (!grown) {
		perror("vrealloc");
		vfree(area);
		return 1;
	}
	if (grown[0] != 42 || grown[size - 1] != 42 || vmalloc_usable_size(grown) < 3 * size) {
		fprintf(stderr, "an area that grew has lost bytes\n");
		return 1;
	}
	printf("%zu MiB %s, then %zu MiB\n", size >> 20, grown == area ? "grew where it lay" : "moved", 3 * size >> 20);

	/* A failure returns NULL and sets errno, and changes nothing. */
	if (vmalloc(SIZE_MAX / 2) || errno != ENOMEM) {
		fprintf(stderr, "half of all addresses were allocated\n");
		return 1;
	}
	vfree(grown);
	printf("%zu MiB released to the system\n", vmalloc_trim() >> 20);
	return 0;
}

/* An unmodified program, which uses only malloc and runs the same with the preload and without.
 *
 * cc grows.c && LD_PRELOAD=PREFIX/lib/libvmalloc_preload.so VMALLOC_CONF=stats:true ./a.out
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void)
{
	unsigned long sum = 0;
	size_t round, size;

	for (round = 0; round < 50; round++) {
		unsigned char *bytes = calloc(1, (size_t)1 << 20);

		for (size = (size_t)1 << 20; bytes && size < (size_t)8 << 20; size *= 2) {
			unsigned char *more = realloc(bytes, 2 * size);

			if (!more) {
				free(bytes);
				bytes = NULL;
				break;
			}
			bytes = more;
			memset(bytes + size, (int)round, size);
		}
		if (!bytes) {
			perror("malloc");
			return 1;
		}
		sum += bytes[0] + bytes[size - 1];
		free(bytes);
	}
	/* 0 + 1 + ... + 49 */
	printf("%lu\n", sum);
	return sum == 1225 ? 0 : 1;
}

/*
 * Where the freestanding program begins and ends, and the four functions that a compiler takes for granted. A kernel
 * has its own of all of these. x86-64 Linux: the only thing asked of the system is to end the process.
 */
#include <stddef.h>

int freestanding_selftest(void);
int freestanding_panic(void);

_Noreturn static void end(long code)
{
	for (;;)
		__asm__ volatile("syscall" : : "a"(231L /* exit_group */), "D"(code) : "rcx", "r11", "memory");
}

/* The panic handler ends here. */
_Noreturn void freestanding_halt(void)
{
	end(101);
}

/* Called by _start with an aligned stack. */
__attribute__((used)) _Noreturn void freestanding_main(void)
{
#ifdef PANIC
	end(freestanding_panic());
#else
	end(freestanding_selftest());
#endif
}

__asm__(".globl _start\n"
	"_start:\n"
	"	xor %ebp, %ebp\n"
	"	and $-16, %rsp\n"
	"	call freestanding_main\n");

void *memcpy(void *restrict to, const void *restrict from, size_t n)
{
	for (size_t i = 0; i < n; i++)
		((unsigned char *)to)[i] = ((const unsigned char *)from)[i];
	return to;
}

void *memmove(void *to, const void *from, size_t n)
{
	if ((size_t)to - (size_t)from >= n)
		return memcpy(to, from, n);
	while (n--)
		((unsigned char *)to)[n] = ((const unsigned char *)from)[n];
	return to;
}

void *memset(void *to, int byte, size_t n)
{
	for (size_t i = 0; i < n; i++)
		((unsigned char *)to)[i] = (unsigned char)byte;
	return to;
}

int memcmp(const void *a, const void *b, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		int difference = ((const unsigned char *)a)[i] - ((const unsigned char *)b)[i];

		if (difference)
			return difference;
	}
	return 0;
}

int bcmp(const void *a, const void *b, size_t n)
{
	return memcmp(a, b, n);
}

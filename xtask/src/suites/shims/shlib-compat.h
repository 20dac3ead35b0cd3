/* Binds a name to a symbol that only programs linked long ago may use. The version is the processor's first. */
#if defined __x86_64__
#define SUITES_FIRST "GLIBC_2.2.5"
#else
#define SUITES_FIRST "GLIBC_2.17"
#endif
#define compat_symbol_reference(library, local, name, version) __asm__(".symver " #local "," #name "@" SUITES_FIRST)

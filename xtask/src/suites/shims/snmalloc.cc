// The functions that snmalloc's tests call, as calls of the C library's.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <malloc.h>
#include <test/snmalloc_testlib.h>

namespace snmalloc {
struct TestScopedAllocator {};

template <ZeroMem zeroed> void *alloc(size_t size) {
    return zeroed == ZeroMem::YesZero ? std::calloc(1, size) : std::malloc(size);
}
template void *alloc<ZeroMem::YesZero>(size_t);
template void *alloc<ZeroMem::NoZero>(size_t);

void dealloc(void *memory) { std::free(memory); }
void dealloc(void *memory, size_t) { std::free(memory); }
void dealloc(void *memory, size_t, size_t) { std::free(memory); }

// Whether a heap is empty, or how many use it, the C library does not say.
void debug_teardown() {}
void debug_check_empty(bool *result) {
    if (result != nullptr)
        *result = true;
}
void debug_in_use(size_t) {}
void cleanup_unused() {}
size_t max_small_sizeclass_bits() { return 16; }

uint64_t pal_tick() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
void pal_pause() {}
void message_impl(const char *text) { std::fprintf(stderr, "%s\n", text); }
[[noreturn]] void error(const char *text) {
    std::fprintf(stderr, "%s\n", text);
    std::abort();
}

namespace libc {
void *malloc(size_t size) { return ::malloc(size); }
void free(void *memory) { ::free(memory); }
size_t malloc_usable_size(const void *memory) { return ::malloc_usable_size(const_cast<void *>(memory)); }
} // namespace libc

ScopedAllocHandle::ScopedAllocHandle() : ptr(nullptr) {}
ScopedAllocHandle::~ScopedAllocHandle() {}
void *ScopedAllocHandle::alloc(size_t size) { return std::malloc(size); }
void ScopedAllocHandle::dealloc(void *memory) { std::free(memory); }
void ScopedAllocHandle::dealloc(void *memory, size_t) { std::free(memory); }
ScopedAllocHandle *ScopedAllocHandle::operator->() { return this; }
const ScopedAllocHandle *ScopedAllocHandle::operator->() const { return this; }
ScopedAllocHandle get_scoped_allocator() { return ScopedAllocHandle(); }
} // namespace snmalloc

// The header in C++, and a vector whose memory are areas.
#include "check.h"
#include "vmalloc.h"

#include <cstddef>
#include <limits>
#include <new>
#include <numeric>
#include <stdexcept>
#include <vector>

template <typename T>
struct Areas {
    using value_type = T;
    Areas() = default;
    template <typename U>
    Areas(const Areas<U> &) {}
    T *allocate(std::size_t count) {
        if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) {
            throw std::bad_alloc();
        }
        if (void *area = ::vmalloc(count * sizeof(T))) {
            return static_cast<T *>(area);
        }
        throw std::bad_alloc();
    }
    void deallocate(T *area, std::size_t) noexcept { ::vfree(area); }
    bool operator==(const Areas &) const { return true; }
    bool operator!=(const Areas &) const { return false; }
};

int main() {
    {
        std::vector<long, Areas<long>> numbers;
        for (long at = 0; at < 300000; at++) {
            numbers.push_back(at);
        }
        CHECK(is_vmalloc_addr(numbers.data()));
        CHECK(std::accumulate(numbers.begin(), numbers.end(), 0L) == 300000L * 299999 / 2);
        bool refused = false;
        try {
            numbers.reserve(numbers.max_size());
        } catch (const std::bad_alloc &) {
            refused = true;
        } catch (const std::length_error &) {
            refused = true;
        }
        CHECK(refused && numbers.size() == 300000);
    }
    struct vmalloc_counts counts;
    CHECK(vmalloc_stats(&counts, sizeof counts) == 0 && counts.live_bytes == 0);
    return 0;
}

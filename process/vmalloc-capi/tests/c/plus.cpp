// The header in C++, and a vector with memory from areas.
#include "check.h"
#include "vmalloc.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <numeric>
#include <stdexcept>
#include <sys/mman.h>
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

struct Hits {
    std::uint64_t eight;
    std::uint32_t four;
    std::uint16_t two;
    std::uint8_t one;
};

static void per_cpu_members_and_chosen_pages() {
    Hits *hits = static_cast<Hits *>(::alloc_percpu(sizeof(Hits), alignof(Hits)));
    CHECK(hits != nullptr);
    this_cpu_add(&hits->eight, 40);
    this_cpu_inc(&hits->four);
    this_cpu_inc(&hits->two);
    this_cpu_sub(&hits->two, 3);
    this_cpu_dec(&hits->one);
    std::uint64_t eight = 0, four = 0;
    std::uint16_t two = 0;
    std::uint8_t one = 0;
    for (unsigned unit = 0; unit < ::percpu_units(); unit++) {
        const Hits *copy = static_cast<const Hits *>(::per_cpu_ptr(hits, unit));
        eight += copy->eight;
        four += copy->four;
        two = static_cast<std::uint16_t>(two + copy->two);
        one = static_cast<std::uint8_t>(one + copy->one);
    }
    CHECK(eight == 40 && four == 1 && two == 65534 && one == 255);
    ::free_percpu(hits);
    percpu_counter counter;
    CHECK(::percpu_counter_init(&counter, 5) == 0);
    ::percpu_counter_add(&counter, -7);
    CHECK(::percpu_counter_sum(&counter) == -2);
    ::percpu_counter_destroy(&counter);
    vm_frames frames;
    CHECK(::vm_alloc_frames(&frames, 1) == 0);
    const std::uint64_t list[] = {frames.first, frames.first};
    /* Two addresses of one byte, which a compiler does not expect. */
    void *area = ::vmap(list, 2, PROT_READ | PROT_WRITE);
    volatile char *view = static_cast<volatile char *>(area);
    CHECK(view != nullptr);
    view[1] = 6;
    CHECK(view[4096 + 1] == 6);
    ::vunmap(area);
    ::vm_free_frames(&frames);
}

int main() {
    per_cpu_members_and_chosen_pages();
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

// C++ operators, which call malloc.
#include "check.h"

#include <cstring>
#include <new>
#include <string>
#include <vector>

struct alignas(256) Wide {
    char bytes[400000];
};

static char *volatile held;

int main() {
    std::vector<std::string> words;
    for (int at = 0; at < 100000; at++) {
        words.push_back(std::string(static_cast<std::size_t>(at % 50), 'x'));
    }
    CHECK(words[99].size() == 49);
    Wide *wide = new Wide;
    CHECK(reinterpret_cast<std::size_t>(wide) % 256 == 0);
    std::memset(wide, 1, sizeof *wide);
    delete wide;
    char *large = new char[3000000];
    std::memset(large, 1, 3000000);
    delete[] large;
    // Stored so that a compiler must not optimize it away.
    held = new (std::nothrow) char[static_cast<std::size_t>(1) << 46];
    CHECK(held == nullptr);
    bool refused = false;
    try {
        volatile std::size_t size = static_cast<std::size_t>(1) << 46;
        held = new char[size];
    } catch (const std::bad_alloc &) {
        refused = true;
    }
    CHECK(refused);
    return 0;
}

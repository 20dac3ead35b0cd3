/* Per-CPU objects and counters in concurrent threads; and calls that fail. */
#include "check.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <vmalloc.h>

enum { THREADS = 4, ROUNDS = 20000 };

struct hits {
    uint64_t eight;
    uint32_t four, other_four;
    uint16_t two;
    uint8_t one, other_one;
};

static struct hits *hits;
static uint64_t *chain;
static struct percpu_counter counter;

static void *work(void *argument) {
    (void)argument;
    for (int at = 0; at < ROUNDS; at++) {
        this_cpu_add(&hits->eight, 3);
        this_cpu_inc(&hits->four);
        this_cpu_dec(&hits->other_four);
        this_cpu_add(&hits->two, 5);
        this_cpu_sub(&hits->one, 1);
        this_cpu_inc(&hits->other_one);
        uint64_t old = this_cpu_read_8(chain);
        for (uint64_t found; (found = this_cpu_cmpxchg_8(chain, old, old + 1)) != old; old = found) {
        }
        percpu_counter_add(&counter, at % 7 - 3);
        percpu_counter_inc(&counter);
        percpu_counter_sub(&counter, 2);
        percpu_counter_dec(&counter);
    }
    return NULL;
}

static void many_threads_lose_nothing(void) {
    errno = EBADF;
    hits = alloc_percpu(sizeof *hits, _Alignof(struct hits));
    chain = alloc_percpu(8, 8);
    CHECK(hits != NULL && chain != NULL && percpu_counter_init(&counter, 1000) == 0 && errno == EBADF);
    pthread_t threads[THREADS];
    for (int at = 0; at < THREADS; at++) {
        CHECK(pthread_create(&threads[at], NULL, work, NULL) == 0);
    }
    for (int at = 0; at < THREADS; at++) {
        CHECK(pthread_join(threads[at], NULL) == 0);
    }
    uint64_t n = (uint64_t)THREADS * ROUNDS;
    uint32_t four = 0, other_four = 0;
    uint16_t two = 0;
    uint8_t one = 0, other_one = 0;
    for (unsigned unit = 0; unit < percpu_units(); unit++) {
        const struct hits *copy = per_cpu_ptr(hits, unit);
        CHECK(copy != NULL && per_cpu_ptr(&hits->two, unit) == (const void *)&copy->two);
        four += copy->four;
        other_four += copy->other_four;
        two = (uint16_t)(two + copy->two);
        one = (uint8_t)(one + copy->one);
        other_one = (uint8_t)(other_one + copy->other_one);
    }
    CHECK(percpu_sum_8(&hits->eight) == 3 * n && percpu_sum_8(chain) == n);
    CHECK(four == n && other_four == (uint32_t)-n && two == (uint16_t)(5 * n));
    CHECK(one == (uint8_t)-n && other_one == (uint8_t)n);
    int64_t sum = 1000;
    for (int at = 0; at < ROUNDS; at++) {
        sum += (int64_t)THREADS * (at % 7 - 3 - 2);
    }
    CHECK(percpu_counter_sum(&counter) == sum);
    CHECK(percpu_counter_compare(&counter, sum) == 0);
    CHECK(percpu_counter_compare(&counter, sum - 1) == 1 && percpu_counter_compare(&counter, sum + 1) == -1);
    CHECK(percpu_counter_read(&counter) < 0 && percpu_counter_read_positive(&counter) == 0);
    percpu_counter_set(&counter, 7);
    CHECK(percpu_counter_sum(&counter) == 7 && percpu_counter_read(&counter) == 7);
    CHECK(percpu_counter_limited_add(&counter, 10, 3) && !percpu_counter_limited_add(&counter, 10, 1));
    CHECK(percpu_counter_sum(&counter) == 10);
    percpu_counter_destroy(&counter);
    free_percpu(hits);
    free_percpu(chain);
    CHECK(errno == EBADF);
}

/* Also where another object was, which was written to by its address alone. First of all: other calls count units as
 * used. */
static void an_object_is_zeros_where_another_was(void) {
    for (size_t size = 8; size <= 32768; size *= 8) {
        for (int round = 0; round < 200; round++) {
            unsigned char *object = alloc_percpu(size, 8);
            CHECK(object != NULL && object[0] == 0 && object[size - 1] == 0);
            memset(object, 7, size);
            free_percpu(object);
        }
    }
}

/* Idle counters cost their 16 bytes alone; one that is promoted goes on from the same sum. */
static void a_counter_is_one_word_until_it_is_promoted(void) {
    enum { COUNTERS = 1000 };
    static struct percpu_counter counters[COUNTERS];
    CHECK(sizeof counters == 16 * COUNTERS);
    errno = EBADF;
    for (int at = 0; at < COUNTERS; at++) {
        CHECK(percpu_counter_init(&counters[at], at) == 0);
        percpu_counter_add(&counters[at], 5);
        CHECK(percpu_counter_limited_add(&counters[at], INT64_MAX, 1) && !percpu_counter_limited_add(&counters[at], 0, 1));
        CHECK(!percpu_counter_is_percpu(&counters[at]) && percpu_counter_read(&counters[at]) == at + 6);
    }
    for (int at = 0; at < COUNTERS; at += 10) {
        CHECK(percpu_counter_promote(&counters[at]) == 0 && percpu_counter_promote(&counters[at]) == 0);
        percpu_counter_dec(&counters[at]);
    }
    for (int at = 0; at < COUNTERS; at++) {
        bool promoted = at % 10 == 0;
        CHECK(percpu_counter_is_percpu(&counters[at]) == promoted);
        CHECK(percpu_counter_sum(&counters[at]) == at + 6 - promoted);
        percpu_counter_destroy(&counters[at]);
    }
    CHECK(errno == EBADF);
}

struct shared {
    struct percpu_ref count;
    int released, confirmed;
};

static void is_released(struct percpu_ref *count) {
    ((struct shared *)count)->released++;
}

static void is_confirmed(struct percpu_ref *count) {
    CHECK(!percpu_ref_tryget_live(count) && percpu_ref_is_dying(count) && !percpu_ref_is_zero(count));
    ((struct shared *)count)->confirmed++;
}

/* As in the kernel: the release ends the count and frees its memory. */
static int freed;
static void is_freed(struct percpu_ref *count) {
    percpu_ref_exit(count);
    memset(count, 0xff, sizeof(struct shared));
    free(count);
    freed++;
}

static struct shared *killed;
static int gets;
static void *get_until_dead(void *argument) {
    (void)argument;
    int got = 0;
    while (percpu_ref_tryget_live(&killed->count)) {
        CHECK(__atomic_load_n(&killed->released, __ATOMIC_SEQ_CST) == 0);
        percpu_ref_get_many(&killed->count, 3);
        percpu_ref_put(&killed->count);
        percpu_ref_put_many(&killed->count, 3);
        __atomic_store_n(&gets, ++got, __ATOMIC_SEQ_CST);
    }
    return NULL;
}

static void a_count_is_released_once_after_the_last_put(void) {
    static struct shared shared;
    errno = 0;
    CHECK(percpu_ref_init(NULL, is_released, 0) == -1 && errno == EINVAL);
    errno = 0;
    CHECK(percpu_ref_init(&shared.count, NULL, 0) == -1 && errno == EINVAL);
    errno = 0;
    CHECK(percpu_ref_init(&shared.count, is_released, 8) == -1 && errno == EINVAL);
    percpu_ref_exit(NULL);
    static const unsigned flags[] = {0, PERCPU_REF_INIT_ATOMIC, PERCPU_REF_ALLOW_REINIT};
    for (int round = 0; round < 3; round++) {
        memset(&shared, 0, sizeof shared);
        killed = &shared;
        gets = 0;
        errno = EBADF;
        CHECK(percpu_ref_init(&shared.count, is_released, flags[round]) == 0 && errno == EBADF);
        CHECK(!percpu_ref_is_dying(&shared.count) && !percpu_ref_is_zero(&shared.count));
        pthread_t threads[THREADS];
        for (int at = 0; at < THREADS; at++) {
            CHECK(pthread_create(&threads[at], NULL, get_until_dead, NULL) == 0);
        }
        while (__atomic_load_n(&gets, __ATOMIC_SEQ_CST) < 100) {
        }
        percpu_ref_get(&shared.count);
        CHECK(percpu_ref_kill_and_confirm(&shared.count, is_confirmed) == 0 && shared.confirmed == 1);
        for (int at = 0; at < THREADS; at++) {
            CHECK(pthread_join(threads[at], NULL) == 0);
        }
        CHECK(shared.released == 0 && percpu_ref_tryget(&shared.count) && percpu_ref_tryget_many(&shared.count, 2));
        errno = 0;
        CHECK(percpu_ref_kill(&shared.count) == -1 && errno == EALREADY);
        errno = 0;
        CHECK(percpu_ref_reinit(&shared.count) == -1 && errno == EBUSY);
        percpu_ref_put_many(&shared.count, 4);
        CHECK(shared.released == 1 && percpu_ref_is_zero(&shared.count) && !percpu_ref_tryget(&shared.count));
        CHECK(percpu_ref_reinit(&shared.count) == 0 && percpu_ref_tryget_live(&shared.count));
        errno = 0;
        CHECK(percpu_ref_reinit(&shared.count) == -1 && errno == EINVAL);
        errno = 0;
        CHECK(percpu_ref_resurrect(&shared.count) == -1 && errno == EINVAL);
        CHECK(percpu_ref_switch_to_atomic(&shared.count) == 0 && !percpu_ref_is_zero(&shared.count));
        percpu_ref_switch_to_percpu(&shared.count);
        CHECK(percpu_ref_kill_and_confirm(&shared.count, NULL) == 0 && percpu_ref_resurrect(&shared.count) == 0);
        percpu_ref_put(&shared.count);
        CHECK(shared.released == 1 && percpu_ref_kill(&shared.count) == 0 && shared.released == 2);
        percpu_ref_exit(&shared.count);
    }
    CHECK(percpu_ref_init(&shared.count, is_released, PERCPU_REF_INIT_DEAD) == 0);
    CHECK(percpu_ref_is_zero(&shared.count) && !percpu_ref_tryget(&shared.count) && percpu_ref_reinit(&shared.count) == 0);
    percpu_ref_exit(&shared.count);
    /* The last put is that of a reference, then that of the kill. */
    struct shared *owned[2] = {malloc(sizeof(struct shared)), malloc(sizeof(struct shared))};
    for (int at = 0; at < 2; at++) {
        CHECK(owned[at] != NULL && percpu_ref_init(&owned[at]->count, is_freed, 0) == 0);
    }
    percpu_ref_get(&owned[0]->count);
    CHECK(percpu_ref_kill(&owned[0]->count) == 0 && freed == 0);
    percpu_ref_put(&owned[0]->count);
    CHECK(freed == 1 && percpu_ref_kill(&owned[1]->count) == 0 && freed == 2);
}

static void objects_are_zeros_apart_and_aligned(void) {
    static uint64_t *held[500];
    for (int round = 0; round < 2; round++) {
        for (size_t at = 0; at < 500; at++) {
            size_t align = (size_t)1 << (at % 13), size = at * 3 % 700 + 1;
            held[at] = alloc_percpu(size, align);
            CHECK(held[at] != NULL && (uintptr_t)held[at] % align == 0);
            for (unsigned unit = 0; unit < percpu_units(); unit++) {
                unsigned char *copy = per_cpu_ptr(held[at], unit);
                for (size_t byte = 0; byte < size; byte++) {
                    CHECK(copy[byte] == 0);
                }
                memset(copy, (int)(at % 255) + 1, size);
            }
        }
        for (size_t at = 0; at < 500; at++) {
            for (unsigned unit = 0; unit < percpu_units(); unit++) {
                const unsigned char *copy = per_cpu_ptr(held[at], unit);
                CHECK(copy[0] == at % 255 + 1 && copy[at * 3 % 700] == at % 255 + 1);
            }
            free_percpu(held[at]);
        }
    }
}

static void errors_have_reasons(void) {
    static const size_t bad[][2] = {{0, 8}, {8, 0}, {8, 3}, {32769, 8}, {8, 8192}, {SIZE_MAX, 8}, {8, SIZE_MAX / 2 + 1}};
    for (int at = 0; at < 7; at++) {
        errno = 0;
        CHECK(alloc_percpu(bad[at][0], bad[at][1]) == NULL && errno == EINVAL);
    }
    uint64_t *object = alloc_percpu(8, 8);
    CHECK(object != NULL);
    errno = 0;
    CHECK(per_cpu_ptr(object, percpu_units()) == NULL && errno == EINVAL);
    errno = 0;
    CHECK(per_cpu_ptr(NULL, 0) == NULL && errno == EINVAL);
    errno = 0;
    CHECK(percpu_counter_init(NULL, 0) == -1 && errno == EINVAL);
    CHECK(this_cpu_xchg_8(object, 5) == 0);
    CHECK(percpu_sum_8(object) == 5);
    free_percpu(object);
    free_percpu(NULL);
    percpu_counter_destroy(NULL);
}

int main(int count, char **names) {
    if (count > 1) {
        /* A mistake, chosen by name: the program must end by abort. */
        char *object = alloc_percpu(64, 64);
        CHECK(object != NULL);
        void *at = strcmp(names[1], "inside") == 0 ? object + 8 : object;
        if (at == object) {
            free_percpu(object);
        }
        printf("%zx\n", (size_t)at);
        fflush(stdout);
        free_percpu(at);
        return 0;
    }
    an_object_is_zeros_where_another_was();
    many_threads_lose_nothing();
    a_counter_is_one_word_until_it_is_promoted();
    a_count_is_released_once_after_the_last_put();
    objects_are_zeros_apart_and_aligned();
    errors_have_reasons();
    return 0;
}

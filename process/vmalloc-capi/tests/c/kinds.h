/* A call of each kind, which takes the state of its kind into use. */
#ifndef KINDS_H
#define KINDS_H

#include "check.h"
#include <sys/mman.h>
#include <vmalloc.h>

static void areas(void) {
    kvfree(kvrealloc(kvmalloc(1 << 20), 5 << 20));
    vmalloc_trim();
}

static void objects(void) {
    struct percpu_counter counter;
    CHECK(percpu_counter_init(&counter, 5) == 0);
    percpu_counter_promote(&counter);
    percpu_counter_destroy(&counter);
    CHECK(percpu_units() > 0);
}

static void frames(void) {
    struct vm_frames two;
    CHECK(vm_alloc_frames(&two, 2) == 0);
    char *view = vmap(&two.first, 1, PROT_READ | PROT_WRITE);
    char *small = vm_map_ram(&two.first, 1, PROT_READ);
    CHECK(view != NULL && small != NULL);
    view[0] = 1;
    vm_unmap_ram(small, 1);
    vunmap(view);
    vm_free_frames(&two);
}

#endif

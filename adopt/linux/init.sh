#!/bin/busybox sh
# The first program of the kernel that `cargo xtask linux` boots. The kernel's command line says what it does:
# va.suite=NAME va.loops=N va.threads=N. Every line that counts begins with "va: ".
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mount -t tmpfs none /tmp
echo 1 > /proc/sys/kernel/printk
suite=boot loops=100 threads=1
for word in $(cat /proc/cmdline); do
    case $word in
    va.suite=*) suite=${word#va.suite=} ;;
    va.loops=*) loops=${word#va.loops=} ;;
    va.threads=*) threads=${word#va.threads=} ;;
    esac
done

# What the kernel complained of since its log was cleared; and more, by an argument.
complain() {
    reports='BUG|WARNING|KASAN:|possible (circular|recursive|irq)|inconsistent lock|va: stopped'
    dmesg | grep -E "$reports|${1-Call Trace|Kernel panic}" | sed 's/^/va: complaint /'
}

# Never mask 64: its alignments grow until no address can have them, and it reports that as a failure.
# insmod calls the kernel twice, since the module returns an error when its tests are through. So each test has two lines.
# mask, threads, loops: one run of lib/test_vmalloc.c, whose lines go to the console.
vmalloc_test() {
    complain
    dmesg -c > /dev/null
    echo "va: test mask=$1 threads=$2 loops=$3"
    insmod /lib/test_vmalloc.ko run_test_mask="$1" nr_threads="$2" test_loop_count="$3" sequential_test_order=1 \
        2> /dev/null
    dmesg | grep -E 'Summary|All test took' | sed 's/^\(.*\] \)*/va: /'
    complain
}

# Programs that begin and end: each has a vmalloc'd stack.
storm() {
    count=0
    while [ "$count" -lt "$1" ]; do
        programs=
        for _ in 1 2 3 4 5 6 7 8 9 10; do
            /bin/true &
            programs="$programs $!"
        done
        wait $programs
        count=$((count + 10))
    done
    echo "va: storm of $1 programs"
}

# Reads a block of vm_map_ram, which /proc/vmallocinfo lists, through /proc/kcore: a file with a section for each range
# of addresses. A section's header has its type, its place in the file, its address and its bytes.
block() {
    set -- $(grep vm_map_ram /proc/vmallocinfo | head -1 | tr '-' ' ')
    start=${1:-0} size=${3:-0} read=0
    for nth in 0 1 2 3 4 5 6 7 8 9; do
        set -- $(dd if=/proc/kcore bs=1 skip=$((64 + 56 * nth)) count=56 2> /dev/null | od -A n -v -t x8)
        past=$((start - 0x$3))
        if [ "$past" -ge 0 ] && [ "$past" -lt $((0x$5)) ]; then
            read=$(dd if=/proc/kcore bs=4096 skip=$(((0x$2 + past) / 4096)) count=$((size / 4096)) 2> /dev/null | wc -c)
        fi
    done
    echo "va: block of $size bytes, $read read"
}

# An access of the core that KASAN reports: overflow or freed.
planted() {
    [ -e /proc/va_plant ] || return
    for what in overflow freed; do
        dmesg -c > /dev/null
        echo $what > /proc/va_plant
        echo "va: planted $what: $(dmesg | grep -m 1 'BUG: KASAN' | sed 's/.*BUG: //')"
        dmesg -c > /dev/null
    done
    # A driver copies what a program wrote into a small mapping.
    echo "va: copied $(echo copy > /proc/va_plant && echo 5) bytes into a block"
    # It frees one by vfree: a warning, and no more.
    echo wrong > /proc/va_plant
    echo 2 > /proc/sys/vm/drop_caches
    echo "va: warned of $(dmesg -c | grep -c 'nonexistent vm area') wrong free of a block"
}

# Counts takings of locks that waited, from `contention 1` to `contention 0`, which prints their number.
contention() {
    cd /sys/kernel/tracing || return
    [ "$1" = 1 ] && echo > trace
    echo "$1" > events/lock/contention_begin/enable
    [ "$1" = 0 ] && cat per_cpu/cpu*/stats | awk '/^(entries|overrun)/ { all += $2 } END { print all }'
    cd /
}

state() {
    [ -r /proc/va_linux ] && echo "va: state $(tr '\n' ' ' < /proc/va_linux)"
    [ -r /proc/va_percpu ] && echo "va: percpu $(tr '\n' ' ' < /proc/va_percpu)"
    echo "va: memory $(grep -E '^(VmallocUsed|Slab|PageTables|Percpu):' /proc/meminfo | tr -s ' \n' ' ')"
}

[ "$suite" = contended ] && mount -t tracefs none /sys/kernel/tracing
echo
echo "va: begin $suite on $(nproc) CPUs, $(uname -r)"
echo "va: areas $(wc -l < /proc/vmallocinfo)"
case $suite in
boot) head -5 /proc/vmallocinfo | sed 's/^/va: /' ;;
quick)
    vmalloc_test 1471 1 10
    vmalloc_test 1471 4 10
    # Without the tests whose threads each take hundreds of megabytes.
    [ "$(nproc)" -gt 4 ] && vmalloc_test 1081 "$(nproc)" 1
    block
    storm 50
    planted
    ;;
hotplug)
    # CPUs go and come, readers look at every area and the shrinkers run, while threads on all of them allocate. Without
    # the two tests that take longest.
    (
        looks=0
        while [ ! -e /tmp/through ]; do
            cat /proc/vmallocinfo > /dev/null
            echo 2 > /proc/sys/vm/drop_caches
            looks=$((looks + 1))
        done
        echo "va: looked and shrunk $looks times"
    ) &
    (
        turns=0
        while [ ! -e /tmp/through ]; do
            for cpu in /sys/devices/system/cpu/cpu[1-9]*/online; do
                echo 0 > "$cpu" && echo 1 > "$cpu" && turns=$((turns + 1))
            done
        done
        echo "va: hotplug of $turns CPUs"
    ) &
    for _ in 1 2 3 4 5; do
        vmalloc_test 1085 4 "$loops"
        storm 50
    done
    touch /tmp/through
    wait
    ;;
faults)
    # For some seconds each twentieth request for memory fails, while the kernel's threads allocate. Programs only
    # wait then, since the shell is one. Not the test of vm_map_ram, which writes where it got no address. Afterwards
    # everything passes.
    mount -t debugfs none /sys/kernel/debug
    for kind in failslab fail_page_alloc; do
        cd /sys/kernel/debug/$kind
        echo 1000000 > times
        echo 0 > verbose
        echo N > ignore-gfp-wait
    done
    echo 0 > min-order
    cd /sys/kernel/debug
    mkfifo /tmp/wait
    (
        # All is open before: to open a file takes memory.
        exec 4<> /tmp/wait 5> failslab/probability 6> fail_page_alloc/probability
        read -r -t 2 word <&4
        echo 5 >&5
        echo 5 >&6
        read -r -t 10 word <&4
        echo 0 >&6
        echo 0 >&5
    ) &
    insmod /lib/test_vmalloc.ko run_test_mask=61 nr_threads=4 test_loop_count=$((loops * 10)) \
        sequential_test_order=1 2> /dev/null
    wait
    dmesg | grep Summary | sed 's/^\(.*\] \)*/va: with faults: /; s/failed:/not passed:/'
    for kind in failslab fail_page_alloc; do
        echo "va: faults of $kind: $((1000000 - $(cat /sys/kernel/debug/$kind/times)))"
    done
    # Not of stacks: a request that fails says so with one.
    complain 'Kernel panic'
    dmesg -c > /dev/null
    vmalloc_test 61 4 10
    # Now each request for pages fails that may not sleep, and no other: the callers of the core may sleep.
    cd /sys/kernel/debug/fail_page_alloc
    echo 1000000000 > times
    echo Y > ignore-gfp-wait
    echo 100 > probability
    vmalloc_test 63 4 10
    echo 0 > probability
    echo "va: faults without sleep: $((1000000000 - $(cat times)))"
    ;;
leaks)
    # After the tests, programs and a module that comes and goes, one area is lost on purpose. An object counts from its
    # fifth second on, and must look the same in two scans.
    mount -t debugfs none /sys/kernel/debug
    vmalloc_test 1065 4 "$loops"
    storm 50
    echo lose > /proc/va_plant
    for _ in 1 2 3; do
        sleep 6
        echo scan > /sys/kernel/debug/kmemleak
    done
    cat /sys/kernel/debug/kmemleak > /tmp/leaks
    echo "va: unreferenced $(grep -c '^unreferenced' /tmp/leaks), planted $(grep -c 'va_plant_write' /tmp/leaks)"
    grep -A 24 '^unreferenced' /tmp/leaks | head -60
    ;;
all)
    for mask in 1 2 4 8 16 32 128 256 512 1024; do vmalloc_test $mask 1 "$loops"; done
    for mask in 1 2 4 8 16 32 128 1024; do vmalloc_test $mask 4 "$loops"; done
    ;;
stress)
    for _ in 1 2 3 4 5; do
        vmalloc_test 1471 4 "$loops"
        storm 200
    done
    ;;
load)
    # The load of load.sh again and again, for so many minutes.
    echo 1 > /proc/sys/net/core/bpf_jit_enable
    uptime() { cut -d . -f 1 /proc/uptime; }
    end=$(($(uptime) + 60 * loops)) rounds=0 passed=0 failed=0
    complain
    dmesg -c > /dev/null
    while [ "$(uptime)" -lt "$end" ]; do
        load.sh 1
        rounds=$((rounds + 1))
        complain
        dmesg -c > /tmp/said
        passed=$((passed + $(grep -c 'Summary.*failed: 0' /tmp/said)))
        failed=$((failed + $(grep 'Summary' /tmp/said | grep -vc 'failed: 0')))
    done
    echo "va: load of $rounds rounds"
    [ "$passed" -gt 0 ] && echo "va: Summary of the module, passed: $passed failed: $failed"
    ;;
calls)
    # All that reaches the core, whose calls are text from the first one of the boot to here. With no loops little of it.
    patterns="ram one mixed live live-mixed large aligned percpu-live" few=$threads
    if [ "$loops" -gt 0 ]; then
        vmalloc_test 1471 "$threads" 10
        block
    else
        patterns="ram one mixed large aligned percpu-live" loops=100 few=1
    fi
    storm 50
    # Alignments that grow until no address has them: the path that waits and reclaims.
    insmod /lib/test_vmalloc.ko run_test_mask=64 nr_threads="$threads" test_loop_count=1 2> /dev/null
    dmesg -c > /dev/null
    for pattern in $patterns; do
        echo "$pattern $threads $loops" > /proc/va_bench
        dmesg -c | grep 'va_bench' | sed 's/^\(.*\] \)*/va: /'
    done
    for cpu in /sys/devices/system/cpu/cpu[1-9]*/online; do
        [ -e "$cpu" ] && echo 0 > "$cpu" && storm 10 && echo 1 > "$cpu" && echo "va: hotplug of $cpu"
    done
    cat /proc/vmallocinfo > /tmp/vmallocinfo
    complain
    # Memory that fails, while the shell alone runs: a program would need a stack.
    echo 2 > /proc/sys/vm/drop_caches
    echo "fail 3" > /proc/va_calls
    echo "live-mixed $few $loops" > /proc/va_bench
    echo "fail 0" > /proc/va_calls
    dmesg -c | grep 'va_bench' | sed 's/^\(.*\] \)*/va: with faults: /'
    storm 50
    echo end > /proc/va_calls
    gzip -9 < /proc/va_calls > /tmp/calls.gz
    stty raw < /dev/ttyS1
    cat /tmp/calls.gz > /dev/ttyS1
    ;;
loops)
    # Each test with a thousandth of the loops, a hundredth, a tenth and all. Before each the shrinkers return what
    # earlier ones left in pools, on either kernel.
    for mask in 1 2 4 8 16 32 128 256 512 1024; do
        for some in $((loops / 1000)) $((loops / 100)) $((loops / 10)) "$loops"; do
            sync
            echo 2 > /proc/sys/vm/drop_caches
            vmalloc_test $mask 1 "$some"
        done
    done
    ;;
trace)
    # The kernel's durations and waits under a load, and what it costs to record them: each way $threads times in turn.
    mount -t tracefs none /sys/kernel/tracing
    mount -t debugfs none /sys/kernel/debug
    echo 1 > /proc/sys/net/core/bpf_jit_enable
    left() { cat /sys/kernel/tracing/dynamic_events; ls /sys/kernel/tracing/instances; }
    # what, and the arguments of the recorder, if it runs
    timed() {
        what=$1
        shift
        if [ "$#" -gt 0 ]; then
            vmlab record --overwrite --buffer-kib 16384 "$@" -- load.sh "$loops" 2> /tmp/said
        else
            load.sh "$loops"
        fi
        echo "va: took $what $(cat /tmp/took)"
        [ "$#" -gt 0 ] && sed "s/^vmlab: /va: said $what: /" /tmp/said
    }
    timed warm-up
    for _ in $(seq "$threads"); do
        timed none
        timed record -o /tmp/plain.jsonl.gz
        timed latency -o /tmp/latency.jsonl.gz --latency
        timed locks -o /tmp/locks.jsonl.gz --latency --locks
    done
    # All at once, whose figures nobody compares.
    timed stacks -o /tmp/stacks.jsonl.gz --latency --locks --stacks
    # By kprobe: as if the kernel had no fprobe. And a recorder that ends by ^C, and one that is killed.
    sed 's/f\[:\[/x/' /sys/kernel/tracing/README > /tmp/README
    mount --bind /tmp/README /sys/kernel/tracing/README
    timed kprobe -o /tmp/kprobe.jsonl.gz --latency
    umount /sys/kernel/tracing/README
    for signal in INT KILL; do
        vmlab record --latency --overwrite -o /tmp/ended.jsonl 2> /tmp/said &
        sleep 4
        echo "va: $signal: $(left | wc -l) probes and instances while it records"
        kill "-$signal" $!
        wait $!
        echo "va: $signal: $(left | wc -l) left, said $(tail -1 /tmp/said)"
    done
    vmlab record --overwrite -o /tmp/ended.jsonl -- true 2> /dev/null
    echo "va: left $(left | wc -l)"
    stty raw < /dev/ttyS1
    tar -c -C /tmp latency.jsonl.gz locks.jsonl.gz stacks.jsonl.gz kprobe.jsonl.gz > /dev/ttyS1
    ;;
events)
    # The events of areas since the boot, if the kernel's command line asked for them. Linux before 6.2 has no such
    # events: there probes of the same functions write the same lines, from now on. A purge returns all that was freed
    # before it.
    mount -t tracefs none /sys/kernel/tracing
    cd /sys/kernel/tracing
    if [ ! -d events/vmalloc ]; then
        printf '%s\n' 'p:va/alloc alloc_vmap_area size=%di align=%si vstart=%dx vend=%cx' \
            'r:va/allocated alloc_vmap_area va_start=+0($retval):x64' \
            'p:va/free free_vmap_area_noflush va_start=+0(%di):x64' 'r:va/purged __purge_vmap_area_lazy' > kprobe_events
        echo 1 > events/va/enable
        # Marks as a recorder writes them: events between them are from while the table is read.
        echo "vmlab vmallocinfo begin opens" > trace_marker
        cat /proc/vmallocinfo > /tmp/vmallocinfo.before
        echo "vmlab vmallocinfo begin closes" > trace_marker
    fi
    echo 1 > /proc/sys/net/core/bpf_jit_enable
    load.sh "$loops"
    echo 0 > tracing_on
    cat /proc/vmallocinfo > /tmp/vmallocinfo
    awk '$1 == "#" { print; next }
        { head = $1 " " $2 " " $3 " " $4 }
        / alloc: / {
            for (at = 6; at <= NF; at++) { split($at, pair, "="); asked[$1, pair[1]] = pair[2] }
            next
        }
        / allocated: / {
            sub(/^.*va_start=/, "", $0)
            split(head, word, " ")
            print head, "alloc_vmap_area: va_start:", $0, "size=" asked[word[1], "size"], "align=" asked[word[1], "align"], \
                "vstart=" asked[word[1], "vstart"], "vend=" asked[word[1], "vend"], "failed=0"
            next
        }
        / free: / {
            sub(/^.*va_start=/, "", $0)
            freed++
            print head, "free_vmap_area_noflush: va_start=" $0, "nr_lazy=0 nr_lazy_max=0"
            next
        }
        / purged: / { print head, "purge_vmap_area_lazy: start=0x0 end=0x0 num_purged=" freed + 0; freed = 0; next }
        { print }' trace | gzip > /tmp/trace.gz
    stty raw < /dev/ttyS1
    cd /tmp
    tar -c trace.gz vmallocinfo* > /dev/ttyS1
    ;;
dump)
    # A state with areas of every kind: pools that purges filled, blocks, lazy areas, and namespaces that live. Then the
    # kernel's own tables. The shell itself reads and writes them, since a program would have a stack, and the port stays
    # open, since its buffer is an area.
    mount -t debugfs none /sys/kernel/debug
    exec 3> /dev/ttyS1
    stty raw < /dev/ttyS1
    show() { echo "== $1"; while IFS= read -r line; do echo "$line"; done < "$2"; } >&3
    show allocinfo.before /proc/allocinfo
    load.sh "$loops"
    vmalloc_test 1049 4 10
    vmalloc_test 128 1 1
    storm 50
    for _ in 1 2 3 4 5 6 7 8; do unshare -n sleep 9999 & done
    sleep 3
    if [ -x /bin/python3 ]; then
        python3 -m vmlab.kernel --vmlinux /vmlinux > /tmp/live 2>&1
        show live /tmp/live
    fi
    show allocinfo /proc/allocinfo
    show percpu_stats /sys/kernel/debug/percpu_stats
    complain
    # A wait without a program: the stacks of those before are freed meanwhile.
    read -r -t 5 line < /dev/ttyS0
    show vmallocinfo /proc/vmallocinfo
    echo "va: dump now"
    read -r line < /dev/ttyS0
    ;;
bench | contended)
    for pattern in ram one mixed live live-mixed large aligned percpu percpu-live; do
        # What the pattern before left to a worker is no part of this one. Its pools are.
        sleep 2
        [ "$suite" = contended ] && contention 1
        echo "$pattern $threads $loops" > /proc/va_bench
        dmesg -c | grep 'va_bench' | sed 's/^\(.*\] \)*/va: /'
        [ "$suite" = contended ] && contention 0 | sed "s/^/va: contended $pattern: /"
        state
    done
    # The shrinkers return what they can, on either kernel. The last state is that after it.
    echo 2 > /proc/sys/vm/drop_caches
    sleep 1
    ;;
esac
state
complain
echo "va: end"
poweroff -f

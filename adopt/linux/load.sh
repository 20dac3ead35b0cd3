#!/bin/busybox sh
# A load of areas and of per-CPU memory, on all CPUs: load.sh ROUNDS
#
# Each round has programs that begin and end, whose stacks are areas; namespaces of networks and of mounts, whose counters
# are per-CPU memory; filters of packets; a module, whose four threads allocate at a time.
# Writes the time that it took, in hundredths of a second, to /tmp/took.
# Without leading zeros, which would make it octal.
now() { cut -d ' ' -f 1 /proc/uptime | sed 's/\.//; s/^0*//'; }
rounds=$1
begin=$(now)
part() {
    for _ in 1 2 3 4 5 6 7 8; do /bin/true & done
    wait
    unshare -n true
    unshare -m sh -c "mkdir -p /tmp/$1 && mount -t tmpfs none /tmp/$1 && cd /tmp/$1 && mkdir l u w o &&
        mount -t overlay none -o lowerdir=l,upperdir=u,workdir=w o"
    /bin/filters 64
}
round=0
while [ "$round" -lt "$rounds" ]; do
    for cpu in 1 2 3 4; do part "$cpu" & done
    wait
    # The module returns an error when its tests are through.
    insmod /lib/test_vmalloc.ko run_test_mask=9 nr_threads=4 test_loop_count=100 test_repeat_count=1 2> /dev/null
    round=$((round + 1))
done
echo $(($(now) - begin)) > /tmp/took

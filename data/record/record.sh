#!/bin/bash
# Records the vmalloc and percpu events of the running kernel under a load of forks, threads, network namespaces, tmpfs and
# overlay mounts. As root: record.sh NAME ROUNDS
#
# Writes NAME.ftrace, and /proc/vmallocinfo at its beginning and end to NAME.before.vmallocinfo and NAME.vmallocinfo. The shrinkers
# (drop_caches) empty the kernel's pools of areas before the first table, and a mark in the trace says so: what events and tables
# never show is empty then. Everything is in an instance of its own. Addresses are real: the instance does not hash them, and
# kptr_restrict is 1 while a table is read, which shows them to root.
set -eu
name=$(realpath "$1") rounds=$2
here=$(cd "$(dirname "$0")" && pwd)
tracefs=$(mktemp -d)
space=$(mktemp -d)
restrict=$(cat /proc/sys/kernel/kptr_restrict)
mount -t tracefs none "$tracefs"
instance=$tracefs/instances/vmlab-by-hand
trap 'cd /; echo "$restrict" > /proc/sys/kernel/kptr_restrict; rmdir "$instance"; umount "$tracefs"; rmdir "$tracefs" "$space"' EXIT
mkdir "$instance"
cd "$instance"
echo 60000 > buffer_size_kb
echo 0 > options/hash-ptr
echo 0 > options/irq-info
mark() { echo "vmlab $1" > trace_marker; }
table() {
    mark "vmallocinfo $1 opens"
    echo 1 > /proc/sys/kernel/kptr_restrict
    cat /proc/vmallocinfo > "$2"
    echo "$restrict" > /proc/sys/kernel/kptr_restrict
    mark "vmallocinfo $1 closes"
}

echo 1 > events/vmalloc/enable
echo 1 > events/percpu/enable
echo 2 > /proc/sys/vm/drop_caches
mark "pools drained"
table begin "$name.before.vmallocinfo"
for round in $(seq "$rounds"); do
    for _ in 1 2 3 4 5 6 7 8; do /bin/true & done
    wait
    unshare -n true
    unshare -m sh -c "mount -t tmpfs none $space; cd $space; mkdir l u w o
        mount -t overlay none -o lowerdir=l,upperdir=u,workdir=w o"
    python3 "$here/areas.py" $((20 + round * 37 % 90)) $((20 + round * 53 % 90)) 64 \
        $((20 + round * 71 % 90)) $((20 + round * 17 % 90)) 48
done
table end "$name.vmallocinfo"
cat /sys/kernel/debug/percpu_stats > "$name.percpu_stats"
echo 0 > tracing_on
cat trace > "$name.ftrace"
grep -h "overrun\|dropped" per_cpu/*/stats

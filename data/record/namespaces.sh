#!/bin/bash
# A load for `vmlab record`, other than that of record.sh. As root: namespaces.sh ROUNDS NAMESPACES
#
# So many rounds of forks and of threads, whose stacks are areas; then so many network namespaces that live at the same time, whose
# counters fill percpu chunks until the kernel makes new ones, and go; then half the rounds again.
set -eu
rounds=$1 namespaces=$2
here=$(cd "$(dirname "$0")" && pwd)
round() {
    for _ in 1 2 3 4 5; do /bin/true & done
    wait
    python3 "$here/areas.py" $((10 + $1 * 29 % 70)) $((10 + $1 * 61 % 50)) 32
}
for n in $(seq "$rounds"); do round "$n"; done
held=()
for _ in $(seq "$namespaces"); do
    unshare -n sleep 600 &
    held+=($!)
done
sleep 4
kill "${held[@]}"
wait || true
# They are dismantled by a worker.
sleep 3
for n in $(seq $((rounds / 2))); do round $((n + 7)); done

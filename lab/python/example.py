#!/usr/bin/env python3
"""Prints the peaks of traces, and what would be under other policies.

    python3 lab/python/example.py target/release/vmlab data/boot-smp1.ftrace.gz ...
"""

import sys

import vmlab


def main(program: str, *traces: str) -> None:
    for one in vmlab.run("report", *traces, vmlab=program):
        assert isinstance(one, vmlab.Figures)
        peaks = ", ".join(f"{name} {peak.value:,} at event {peak.event:,}" for name, peak in one.peaks.items())
        print(f"{one.trace}: {peaks}")
        for caller in one.callers[:3]:
            print(f"  {caller.name}: {caller.bytes:,} bytes in {caller.areas} areas")
    for row in vmlab.rows(vmlab.run("whatif", *traces, vmlab=program)):
        print(f"{row['recording']}: {row['policy']}: span {row['span_bytes']:,} bytes, {row['purges']} purges")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Tests of vmlab.dump, which computes from plain values, and of what vmlab.kernel says where drgn is of no use.

python3 -m unittest test_dump
"""

import contextlib
import io
import json
import os
import random
import sys
import tempfile
import unittest
from unittest import mock
from dataclasses import replace

from vmlab import UnknownVersion, dump, kernel
from vmlab.dump import Area, Block, Chunk, Dump, Head, Hole, Pool, Site, State, Window

TOP = dump.SPAN[1]
BASE = 0xFFFFC90000000000


def small() -> Dump:
    """A space that meets every rule: two nodes, each state, a pool of two sizes, a block, a chunk beside the first."""
    at = BASE
    areas = [
        Area(at, at + 0x4000, "busy", 0, "kernel_clone+0xc2/0x430 pages=3 vmalloc", 0, 3),
        Area(at + 0x4000, at + 0x6000, "lazy", 0, "unpurged vm_area"),
        Area(at + 0x6000, at + 0x7000, "purging", 1, "unpurged vm_area"),
        Area(at + 0x7000, at + 0x9000, "pooled", 1, "pooled vm_area"),
        Area(at + 0x9000, at + 0xA000, "pooled", 1, "pooled vm_area"),
        Area(at + 0x10000, at + 0x14000, "busy", 1, "vm_map_ram", 3),
        Area(at + 0x20000, at + 0x28000, "busy", 0, "pcpu_get_vm_areas+0x0/0x9f0 vmalloc"),
    ]
    holes = [
        Hole(1, at),
        Hole(at + 0xA000, at + 0x10000),
        Hole(at + 0x14000, at + 0x20000),
        Hole(at + 0x28000, TOP),
    ]
    chunks = [
        Chunk(0xFFFF888000010000, "first", 3, 8, 8, 1, 400, 60, 100, 8, 9, 60),
        Chunk(at + 0x20000, "", 5, 8, 2, 0, 80, 20, 20, 2, 4, 20),
        Chunk(0xFFFF888000000000, "reserved", -1, 2, 2, 0, 0, 0, 0, 2, 1, 0),
    ]
    return Dump(
        Head("6.12.117", "x86_64", 2, 2, 4096, "drgn 0.3.0", False),
        State(2, 0x10000, 3, 16384, False, False, 0x8000, 2, 14, 12, 1),
        [Window("vmalloc", at, at + 0x100000)],
        areas,
        holes,
        [Pool(1, 1, 1), Pool(1, 2, 1)],
        [Block(at + 0x10000, at + 0x14000, 1, True, 1, 1, 2)],
        chunks,
        [
            Site("percpu", "kernel/sched/fair.c", 9, "alloc_fair", "", 256, 4),
            Site("vmalloc", "a.c", 1, "f", "m", 4096, 1),
        ],
    )


TABLE = "\n".join(
    f"0x{area.start:016x}-0x{area.end:016x} {area.bytes:7} {area.text} N0=4"
    for area in small().areas
    if area.state in ("busy", "lazy")
)


def broken(**changes: object) -> Dump:
    return replace(small(), **changes)


def with_area(nth: int, **changes: object) -> Dump:
    areas = small().areas
    areas[nth] = replace(areas[nth], **changes)
    return broken(areas=areas)


def with_chunk(nth: int, **changes: object) -> Dump:
    chunks = small().chunks
    chunks[nth] = replace(chunks[nth], **changes)
    return broken(chunks=chunks)


class Checks(unittest.TestCase):
    def differing(self, found: Dump, table: object = TABLE) -> set:
        return {check.rule for check in dump.checks(found, table) if not check.holds}

    def test_a_whole_space_meets_every_rule(self) -> None:
        self.assertEqual(self.differing(small()), set())
        self.assertEqual(len(dump.checks(small(), TABLE)), 15)
        self.assertEqual(len(dump.checks(small())), 14)

    def test_each_rule_is_broken_by_a_state_of_its_own(self) -> None:
        state, holes = small().state, small().holes
        split = Hole(BASE + 0x14000, BASE + 0x18000), Hole(BASE + 0x18000, BASE + 0x20000)
        for found, rule in [
            (broken(holes=[*holes, Hole(BASE + 0x1000, BASE + 0x2000)]), "areas and holes are disjoint"),
            (broken(holes=holes[:-1]), "areas and holes are all addresses"),
            (broken(holes=[*holes[:2], *split, holes[3]]), "no two holes touch"),
            (broken(state=replace(state, lazy_pages=4)), "lazy pages are the kernel's count"),
            (
                broken(pools=[Pool(1, 1, 2), Pool(1, 2, 1)]),
                "each pool has as many areas of its size as the kernel counts",
            ),
            (broken(pools=[Pool(1, 2, 1)]), "each pool has as many areas of its size as the kernel counts"),
            (with_area(0, node=1), "busy areas are in the node of their address"),
            (broken(blocks=[replace(small().blocks[0], live=3)]), "free, dirty and live pages are the whole block"),
            (broken(blocks=[]), "each block is a busy area, and each area of blocks is a block"),
            (with_chunk(0, free_bytes=404), "free bits of a chunk are its free bytes"),
            (with_chunk(2, bits_populated=1), "populated bits of a chunk are its populated pages"),
            (with_chunk(1, hint=21), "the hint of a chunk is no longer than its longest run"),
            (with_chunk(1, base=BASE + 0x21000), "chunks after the first begin at a busy area"),
            (broken(state=replace(state, percpu_populated=13)), "populated pages are the kernel's count"),
            (broken(state=replace(state, percpu_empty=2)), "empty populated pages are the kernel's count"),
        ]:
            self.assertEqual(self.differing(found), {rule})

    def test_the_kernels_own_table_must_be_the_same(self) -> None:
        rule = {"/proc/vmallocinfo has the same areas"}
        lines = TABLE.splitlines()
        for table in [
            "",
            "\n".join(lines[1:]),
            TABLE + "\nnonsense",
            TABLE.replace("pages=3", "pages=2"),
            TABLE.replace("kernel_clone", "kernel_thread"),
            TABLE.replace(f"{BASE:016x}-", f"{BASE - 0x1000:016x}-"),
        ]:
            self.assertEqual(self.differing(small(), table), rule, table)
        # Offsets depend on who reads the symbols, and NUMA nodes are not in a dump.
        self.assertEqual(self.differing(small(), TABLE.replace("+0xc2/0x430", "+0xc2/0x440")), set())


class Bits(unittest.TestCase):
    def test_bits_are_the_lowest_first(self) -> None:
        self.assertEqual(
            [dump.bits(0b1101, 4), dump.bits(0b1101, 6), dump.bits(0xFF, 2), dump.bits(1, 0)],
            ["1011", "101100", "11", ""],
        )

    def test_ranges_are_those_of_a_walk_bit_by_bit(self) -> None:
        draw = random.Random(7)
        for _ in range(300):
            # Objects and free runs in turn; bounds between free bits are stale.
            taken, bounds, objects, runs = "", "", 0, [0]
            while len(taken) < 40:
                length = draw.randint(1, 6)
                if draw.random() < 0.5:
                    taken, bounds, objects = taken + "1" * length, bounds + "1" + "0" * (length - 1), objects + 1
                    runs.append(0)
                else:
                    stale = "".join(draw.choice("01") for _ in range(length - 1))
                    taken, bounds = taken + "0" * length, bounds + "1" + stale
                    runs[-1] += length
            found = list(dump.ranges(taken, bounds))
            self.assertEqual(sum(length for _, length, _ in found), len(taken))
            self.assertEqual([taken[at] == "1" for at, _, _ in found], [is_object for _, _, is_object in found])
            free = [length for _, length, is_object in found if not is_object]
            got = (sum(is_object for _, _, is_object in found), sum(free), max(free, default=0))
            self.assertEqual(got, (objects, taken.count("0"), max(runs)), (taken, bounds))
        self.assertEqual(list(dump.ranges("", "")), [])


class Lines(unittest.TestCase):
    def test_a_dump_is_read_as_it_was_written(self) -> None:
        lines = list(dump.lines(small()))
        self.assertEqual(dump.read(lines), small())
        area = json.loads(lines[2])["area"]
        self.assertEqual((area["when"], area["start"], area["bytes"]), ("begin", f"{BASE:#x}", 0x4000))
        more = [line.replace('"live":', '"later":1,"live":') for line in lines] + ['{"other":{}}', ""]
        self.assertEqual(dump.read(more), small())

    def test_another_recording_is_an_error(self) -> None:
        lines = list(dump.lines(small()))
        for wrong in (
            lines[1:],
            lines[:1],
            [lines[0].replace('"version":1', '"version":2')],
            ['{"vmlab":{"version":1}}'],
        ):
            with self.assertRaises(UnknownVersion):
                dump.read(wrong)
        with self.assertRaises(TypeError):
            dump.read([line.replace('"node":', '"nude":') for line in lines])

    def test_tables_fit_eighty_columns_and_have_the_numbers(self) -> None:
        text = dump.tables(small())
        self.assertLessEqual(max(map(len, text.splitlines())), 80, text)
        for part in [
            "busy         3   64 KiB",
            "lazy         1    8 KiB",
            "holes        3",
            "1:1 2:1",
            "3 lazy pages",
            "reserved",
        ]:
            self.assertIn(part, text)
        long = Site("percpu", "d/" * 60 + "a.c", 1, "f", "", 1, 1)
        chunk = Chunk(BASE, "isolated", 19, 128, 128, 0, 524288, 131072, 131072, 128, 99999, 131072)
        many = broken(
            chunks=[chunk], sites=[long] * 40, state=replace(small().state, nodes=128), areas=small().areas * 3
        )
        self.assertLessEqual(max(map(len, dump.tables(many).splitlines())), 80)

    def test_sizes_are_rounded_and_in_their_unit(self) -> None:
        shown = [dump.size(count) for count in (0, 1023, 1024, 1536, 3 << 20, 5 << 50)]
        self.assertEqual(shown, ["0 B", "1,023 B", "1 KiB", "1.5 KiB", "3 MiB", "5,120 TiB"])


class Errors(unittest.TestCase):
    def said(self, *arguments: str) -> str:
        with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()) as printed:
            self.assertEqual(kernel.main(arguments), 2)
        self.assertEqual(printed.getvalue(), "")
        self.assertEqual(said.getvalue().count("\n"), 1, said.getvalue())
        self.assertTrue(said.getvalue().startswith("vmlab.kernel: "), said.getvalue())
        return said.getvalue()

    def test_without_drgn_one_line_says_so(self) -> None:
        known = sys.modules.get("drgn")
        sys.modules["drgn"] = None  # type: ignore[assignment]
        try:
            self.assertIn("pip install drgn", self.said("core"))
        finally:
            del sys.modules["drgn"]
            if known:
                sys.modules["drgn"] = known

    def test_a_kernel_with_other_structures_is_reported_in_a_line(self) -> None:
        drgn = mock.MagicMock()
        drgn.PlatformFlags.IS_64_BIT, drgn.PlatformFlags.IS_LITTLE_ENDIAN = 1, 2
        drgn.helpers.linux.cpumask.for_each_possible_cpu.return_value = [0]
        names = ("drgn", "drgn.helpers", "drgn.helpers.linux")
        modules = dict(zip(names, (drgn, drgn.helpers, drgn.helpers.linux)))
        for missing, text in (("vmap_nodes", "has no `vmap_nodes`"), ("pcpu_first_chunk", "has other structures")):

            def variable(name: str, missing: str = missing) -> mock.MagicMock:
                if name == missing:
                    raise KeyError(f"could not find '{name}'")
                found = mock.MagicMock()
                found.value_.return_value = 1
                return found

            prog = mock.MagicMock()
            prog.platform.flags = 3
            prog.__getitem__.side_effect = variable
            with mock.patch.dict(sys.modules, modules), self.assertRaises(kernel.Unreadable) as raised:
                kernel.read(prog)
            self.assertIn(text, str(raised.exception))
            self.assertNotIn("\n", str(raised.exception))

    def test_a_file_that_is_no_dump_is_reported_in_a_line(self) -> None:
        try:
            import drgn  # noqa: F401
        except ImportError:
            self.skipTest("drgn is not installed")
        self.assertIn("there is no such file", self.said("no-such-file"))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "core")
            with open(path, "w", encoding="utf-8") as file:
                file.write("no core")
            self.assertIn("no core dump that drgn reads", self.said(path))


if __name__ == "__main__":
    unittest.main()

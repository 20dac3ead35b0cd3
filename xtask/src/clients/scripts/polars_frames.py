# The same kind of work by polars, whose wheel has an allocator of its own inside: what comes from Python and NumPy is left.
import polars as pl

rows = 2_000_000
frame = pl.DataFrame({"i": pl.int_range(rows, eager=True)}).with_columns(
    ((pl.col("i") * 7919) % 10007).alias("k"), ((pl.col("i") * 104729) % 1000003).alias("v")
)
for step in range(3):
    groups = frame.group_by("k").agg(pl.col("v").sum().alias("s"))
    part = frame.join(groups, on="k").filter(pl.col("v") % 2 == step % 2).sort("s", "v", "i")
    print(part.height, part["s"].sum(), part["i"][part.height // 2])

# Columns, groups, joins and sorts of a frame of two million rows; whole numbers.
import numpy as np
import pandas as pd

rows = 2_000_000
i = np.arange(rows, dtype=np.int64)
frame = pd.DataFrame({"k": (i * 7919) % 10007, "v": (i * 104729) % 1000003, "w": i % 77})
for step in range(3):
    frame["x"] = frame["v"] * 3 + frame["w"] - step
    frame["y"] = (frame["x"] - frame["v"]).abs() // 7
    groups = frame.groupby("k")[["x", "y"]].sum()
    joined = frame.merge(groups, left_on="k", right_index=True, suffixes=("", "_sum"))
    part = joined[joined["x"] % 2 == step % 2].sort_values(["y", "v"], kind="stable")
    print(len(part), int(part["x_sum"].sum()), int(part["y"].iloc[len(part) // 2]), int(groups["x"].max()))

# Elementwise expressions on large arrays: each operation makes a temporary of the size of the array.
import numpy as np

total = 0.0
for megabytes in (24, 32, 48, 64):
    count = megabytes * (1 << 20) // 8
    a = np.arange(count, dtype=np.float64) * 1e-6
    b = np.arange(count, dtype=np.float64)[::-1] * 2e-6
    for step in range(16):
        c = a * 1.5 + b * 0.5 - (a - b) * 0.25
        d = (c + a) * (c - b) + step
        total += float(d[step :: 4096].sum())
        del c, d
print(f"{total:.17g}")

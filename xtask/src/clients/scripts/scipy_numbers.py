# Fourier transforms, filters of pictures, sparse and dense systems: SciPy's own C, C++ and Fortran, which take working arrays of megabytes.
import numpy as np
import scipy
from scipy import fft, linalg, ndimage, signal, sparse
from scipy.sparse.linalg import splu

rng = np.random.default_rng(11)
wave = rng.normal(size=1 << 20)
for step in range(3):
    spectrum = fft.rfft(wave * (1 + step), workers=1)
    wave = fft.irfft(spectrum * np.exp(-np.arange(spectrum.size) * 1e-7), n=wave.size) / (1 + step)
smooth = signal.fftconvolve(wave, np.hanning(4001) / 2000, mode="same")
picture = rng.normal(size=(1500, 2000))
for step in range(2):
    picture = ndimage.gaussian_filter(picture, 2.0) + ndimage.sobel(picture, axis=step) * 0.01
turned = ndimage.zoom(picture[:800, :800], 1.5, order=1)
side = 150
line = sparse.diags([-1.0, 2.0, -1.0], [-1, 0, 1], shape=(side, side))
grid = sparse.kronsum(line, line, format="csc")
heat = splu(grid).solve(np.ones(side * side))
dense = rng.normal(size=(500, 500))
values = linalg.svdvals(dense)
for answer in (np.abs(smooth).sum(), np.abs(picture).sum(), np.abs(turned).sum(), heat.sum(), values[:5].sum()):
    print(f"{answer:.9g}")

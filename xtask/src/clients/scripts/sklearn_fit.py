# Principal components, clusters and a regression of 100000 samples of 60 features. Sums of floats depend on no allocator, threads are two.
import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.linear_model import Ridge
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

x = np.random.default_rng(7).normal(size=(100_000, 60))
y = x[:, :7].sum(axis=1)
scaled = StandardScaler().fit_transform(x)
part = PCA(n_components=8, svd_solver="covariance_eigh").fit_transform(scaled)
centers = KMeans(n_clusters=6, n_init=1, max_iter=10, random_state=3).fit(part).cluster_centers_
more = PolynomialFeatures(degree=2).fit_transform(x[:40_000, :20])
ridge = Ridge(alpha=0.5).fit(more, y[:40_000])
print(np.round(np.abs(centers).sum(), 6), np.round(np.abs(ridge.coef_).sum(), 6))

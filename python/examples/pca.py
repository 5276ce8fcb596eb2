"""Incremental PCA and k-means by scikit-learn on an array of four times its RAM."""

import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import IncrementalPCA

import farpage

pager = farpage.Pager("8M")
points = pager.empty((1 << 17, 64), np.float32)          # 32 MiB
rng = np.random.default_rng(1)
centres = rng.normal(size=(4, 64)).astype(np.float32) * 8
for i, part in enumerate(np.array_split(points, 32)):
    part[:] = rng.normal(size=part.shape) + centres[i % 4]

points -= points.mean(axis=0, dtype=np.float64).astype(np.float32)
plane = IncrementalPCA(2, batch_size=8192).fit(points)
groups = KMeans(4, n_init=1, copy_x=False, random_state=1).fit_predict(points)    # passes in order

assert plane.explained_variance_ratio_.sum() > 0.5
for i, part in enumerate(np.array_split(groups, 32)):   # each centre's points are one group
    assert (part == part[0]).mean() > 0.99, i
print(f"{points.nbytes >> 20} MiB in {pager.ram >> 20} MiB: {plane.explained_variance_ratio_.round(3)}")
print(pager.stats())

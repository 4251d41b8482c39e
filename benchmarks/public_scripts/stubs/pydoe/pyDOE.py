"""Latin hypercube samples."""

import numpy as np


def lhs(dimensions, samples):
    cells = [np.random.permutation(samples) for _ in range(dimensions)]
    return (np.stack(cells, 1) + np.random.rand(samples, dimensions)) / samples

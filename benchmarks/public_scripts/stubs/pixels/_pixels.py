"""A game of frames with gym's old interface: the paddle should be where the bright column is."""

import types

import numpy as np


class Env:
    observation_space = types.SimpleNamespace(shape=(1, 42, 42))
    action_space = types.SimpleNamespace(n=3)

    def seed(self, seed):
        self._random = np.random.default_rng(seed)

    def _frame(self):
        self._column = int(self._random.integers(3))
        frame = self._random.normal(0, 0.1, (1, 42, 42)).astype(np.float32)
        frame[0, :, 14 * self._column : 14 * (self._column + 1)] += 1
        return frame

    def reset(self):
        self._left = 50
        return self._frame()

    def step(self, action):
        reward = 1.0 if int(np.asarray(action).reshape(-1)[0]) == self._column else -1.0
        self._left -= 1
        return self._frame(), reward, self._left == 0, {}

"""gym as it was before version 0.26, on top of gymnasium: `seed`, a bare observation from `reset`, four values from `step`."""

import sys

import gymnasium
from gymnasium import spaces

sys.modules["gym.spaces"] = spaces


class _Old:
    def __init__(self, env):
        self._env, self._seed = env, None
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self._max_episode_steps = env.spec.max_episode_steps

    def seed(self, seed=None):
        self._seed = seed

    def reset(self):
        observation, _ = self._env.reset(seed=self._seed)
        self._seed = None
        return observation

    def step(self, action):
        observation, reward, ended, cut, info = self._env.step(action)
        return observation, float(reward), ended or cut, info

    def close(self):
        self._env.close()


def make(name):
    old = _Old(gymnasium.make(name))
    old.seed(0)
    return old

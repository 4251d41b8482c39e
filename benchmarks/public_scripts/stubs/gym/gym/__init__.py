"""gymnasium under its old name."""

import sys

import gymnasium
import gymnasium.spaces.box

sys.modules["gym"] = gymnasium
sys.modules["gym.spaces"] = gymnasium.spaces
sys.modules["gym.spaces.box"] = gymnasium.spaces.box

"""A wave that decays, in the form of the file that the notebook reads."""

import numpy as np


def made_up():
    time, place = np.linspace(0, 0.99, 100), np.linspace(-1, 1, 256)
    wave = -np.sin(np.pi * place)[:, None] * np.exp(-time)[None]
    return {"t": time[:, None], "x": place[:, None], "usol": wave}

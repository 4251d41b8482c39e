import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def largest(build, size=512):
    while size:
        try:
            model = build()
            loss = model(torch.randn(size, 4)).mean()
            loss.backward()
            del model, loss
            torch.cuda.empty_cache()
            return size
        except RuntimeError as error:
            if "out of memory" not in str(error):
                raise
            size //= 2

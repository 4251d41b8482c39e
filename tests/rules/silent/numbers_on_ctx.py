import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor, size):
        ctx.factor = factor
        ctx.size = x.shape
        ctx.count = x.size(0)
        ctx.training = size > 1
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None, None


Scale.apply(torch.randn(3, requires_grad=True), 2.0, 4).sum().backward()

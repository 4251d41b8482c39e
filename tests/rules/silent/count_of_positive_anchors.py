import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def detection_loss(conf, loc, conf_gt, loc_gt):
    pos = conf_gt > 0
    num_pos = pos.sum()
    loss = F.smooth_l1_loss(loc[pos], loc_gt[pos], reduction="sum")
    loss = loss + F.cross_entropy(conf.flatten(0, 1), conf_gt.flatten(), reduction="sum")
    return loss / num_pos

import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def run_simple(model, optimizer, loader, is_training):
    model.train() if is_training else model.eval()
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        if is_training:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def run(model, optimizer, loader, args, is_training):
    if is_training:
        model.train()
    else:
        model.eval()
    for x, y in loader:
        if is_training and args.use_aux:
            out, aux = model(x)
            loss = F.mse_loss(out, y) + F.mse_loss(aux, y)
        else:
            out = model(x)
            loss = F.mse_loss(out, y)
        if is_training:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def train(model, args, load_data):
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    train_loader = load_data("train")
    if args.ckpt:
        val_loader = None
    else:
        val_loader = load_data("val")
    for epoch in range(args.epochs):
        if args.no_img:
            run_simple(model, optimizer, train_loader, is_training=True)
        else:
            run(model, optimizer, train_loader, args, is_training=True)
        if not args.ckpt:
            with torch.no_grad():
                if args.no_img:
                    run_simple(model, optimizer, val_loader, is_training=False)
                else:
                    run(model, optimizer, val_loader, args, is_training=False)

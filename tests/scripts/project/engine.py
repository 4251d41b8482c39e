"""Helpers in another file of the project."""
import torch


def backward_and_step(loss, optimizer, scaler, model):
    scaler.scale(loss).backward()
    clip(model)
    scaler.step(optimizer)
    scaler.update()


def clip(model):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # FL201

"""A wrapper class around GradScaler, as timm has it: unscale, clip and step inside __call__."""
import torch
import torch.nn as nn


class NativeScaler:
    def __init__(self, device="cuda"):
        self._scaler = torch.amp.GradScaler(device)

    def __call__(self, loss, optimizer, clip_grad=None, parameters=None, create_graph=False, need_update=True):
        self._scaler.scale(loss).backward(create_graph=create_graph)
        if need_update:
            if clip_grad is not None:
                self._scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(parameters, clip_grad)
            self._scaler.step(optimizer)
            self._scaler.update()


def train_one_epoch(epoch, model, loader, optimizer, loss_fn, args, loss_scaler=None):
    accum_steps = args.grad_accum_steps
    last_accum_steps = len(loader) % accum_steps
    updates_per_epoch = (len(loader) + accum_steps - 1) // accum_steps
    last_batch_idx = len(loader) - 1
    last_batch_idx_to_accum = len(loader) - last_accum_steps
    model.train()
    optimizer.zero_grad()
    for batch_idx, (input, target) in enumerate(loader):
        last_batch = batch_idx == last_batch_idx
        need_update = last_batch or (batch_idx + 1) % accum_steps == 0
        if batch_idx >= last_batch_idx_to_accum:
            accum_steps = last_accum_steps
        with torch.autocast("cuda", enabled=loss_scaler is not None):
            output = model(input)
            loss = loss_fn(output, target)
        if accum_steps > 1:
            loss /= accum_steps
        if loss_scaler is not None:
            loss_scaler(loss, optimizer, clip_grad=args.clip_grad, parameters=model.parameters(), need_update=need_update)
        else:
            loss.backward()
            if need_update:
                optimizer.step()
        if need_update:
            optimizer.zero_grad()


def main(args):
    model = nn.Linear(10, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(args.data, batch_size=4)
    loss_scaler = NativeScaler() if args.amp else None
    for epoch in range(args.epochs):
        train_one_epoch(epoch, model, loader, optimizer, nn.CrossEntropyLoss(), args, loss_scaler)

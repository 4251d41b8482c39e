import argparse
from contextlib import nullcontext

import torch


def main(args, loader):
    if args["precision"] == "bf16":
        dtype = torch.bfloat16
    elif args["precision"] == "fp32":
        dtype = torch.float32
    elif args["precision"] == "fp16_autocast":
        dtype = torch.float16
    else:
        raise ValueError("Invalid precision")
    model = torch.nn.Linear(4, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if args["precision"] in ["fp16_autocast", "bf16_autocast"]:
        autocast = torch.autocast("cuda", dtype=dtype)
    else:
        autocast = nullcontext()
    scaler = torch.amp.GradScaler("cuda") if args["precision"] == "fp16_autocast" else None
    scale_grads = scaler is not None
    for epoch in range(args["epochs"]):
        for x in loader:
            with autocast:
                loss = model(x.cuda()).mean()
            if scale_grads:
                scaler.scale(loss).backward()
            else:
                loss.backward()
            if args["clip"]:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # FL201
            if scale_grads:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--precision", default="bf16")
    main(vars(parser.parse_args()), torch.utils.data.DataLoader(torch.randn(64, 4)))

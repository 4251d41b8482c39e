"""A DeepSpeed engine does the scaling, clipping, accumulation and stepping."""
import deepspeed
import torch


def main(args, model, dataset):
    engine, _, loader, _ = deepspeed.initialize(args=args, model=model, training_data=dataset)
    for epoch in range(args.epochs):
        for batch in loader:
            loss = engine(batch)
            engine.backward(loss)
            engine.step()

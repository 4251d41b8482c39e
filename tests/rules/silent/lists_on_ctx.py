"""How many rows go to each rank: lists, made of a tensor or given as such."""

import torch
import torch.distributed as dist


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, input_splits, output_splits):
        if output_splits is None:
            counts = torch.empty(dist.get_world_size(), dtype=torch.int64)
            dist.all_to_all_single(counts, torch.tensor(input_splits))
            output_splits = counts.cpu().tolist()
        output = torch.empty(sum(output_splits), input.shape[1])
        dist.all_to_all_single(output, input, output_splits, input_splits)
        ctx.input_splits = input_splits
        ctx.output_splits = output_splits
        return output, output_splits

    @staticmethod
    def backward(ctx, grad_output, _):
        grad = torch.empty(sum(ctx.input_splits), grad_output.shape[1])
        dist.all_to_all_single(grad, grad_output, ctx.input_splits, ctx.output_splits)
        return grad, None, None

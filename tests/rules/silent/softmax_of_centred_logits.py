import torch


class Categorical:
    def entropy(self, logits):
        logits = logits - logits.logsumexp(dim=-1, keepdim=True)
        return -(logits * logits.softmax(-1)).sum(-1)


def attention_loss(scores, values, target):
    scores = scores - scores.max(dim=-1, keepdim=True)[0]
    return ((torch.softmax(scores, dim=-1) * values).sum(-1) - target).square().mean()


def attend(sim, values):
    sim = sim - sim.amax(dim=-1, keepdim=True).detach()
    return sim.softmax(dim=-1) @ values

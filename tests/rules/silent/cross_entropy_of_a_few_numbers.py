import torch
import torch.nn.functional as F

logits = torch.tensor([2.0, 1.0, 0.1])
target = 0
probs = F.softmax(logits, dim=-1)
loss_manual = -torch.log(probs[target])
print(loss_manual, F.cross_entropy(logits[None], torch.tensor([target])))

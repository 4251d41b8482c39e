import lightning as L
import torch
import torch.nn.functional as F


def distill_step(self, batch, stage):
    """What the module below walks: its loss, and what its callbacks look at."""
    out = {}
    with torch.no_grad():
        target = self.teacher(batch["image"]).softmax(-1)
    student = self.student(batch["image"])
    loss = F.cross_entropy(student, target)
    out["target"] = target.detach()
    out["embedding"] = student.detach()
    out["confidence"] = student.softmax(-1).max(-1).values.detach()
    out["loss"] = loss
    self.log(f"{stage}/loss", out["loss"])
    return out


def contrast(features, labels):
    similarity = features @ features.T
    loss = F.cross_entropy(similarity, labels)
    return {
        "loss": loss,
        "similarity": similarity.detach(),
        "norm": features.norm(dim=-1).mean().detach(),
        "largest": similarity.max().detach(),
    }


class Distilled(L.LightningModule):
    def __init__(self, student, teacher, step=distill_step):
        super().__init__()
        self.student, self.teacher, self.step = student, teacher, step
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        state = self.step(self, batch, "train")
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(state["loss"])
        optimizer.step()
        return state

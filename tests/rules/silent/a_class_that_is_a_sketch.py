from torch import nn


class Planned(nn.Module):
    def __init__(self, channels):
        pass

    def forward(self, student, teacher):
        return self.compute_loss(student, teacher)

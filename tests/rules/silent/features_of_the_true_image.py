"""A perceptual loss: one fixed network sees the prediction and the true image."""

from torch import nn


class VGGLoss(nn.Module):
    def __init__(self, vgg: nn.Module):
        super().__init__()
        self.vgg = vgg.eval()
        self.loss = nn.MSELoss()

    def forward(self, predict, target):
        pred_logits = self.vgg(predict)
        target_logits = self.vgg(target)
        return self.loss(pred_logits, target_logits)

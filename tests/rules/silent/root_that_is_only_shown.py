# The root is detached by the only one who asks for it; the same name stands for another result where a loss is made of it.
import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Conv2d(3, 8, 3)
        self.loss = nn.BCEWithLogitsLoss()
        self.optimizer = torch.optim.Adam(self.parameters())

    def segment(self, image):
        x = torch.relu(self.features(image))
        x = torch.sqrt(x)
        return x

    def classify(self, image):
        return self.features(image).mean(dim=(1, 2, 3))

    def event(self, name, image, label):
        if name == "cam":
            result = self.segment(image)
            return result.detach().cpu().numpy()
        if name == "minibatch":
            result = self.classify(image)
            loss = self.loss(result, label)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return None

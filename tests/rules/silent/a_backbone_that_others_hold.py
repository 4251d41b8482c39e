import timm
from mmcv.runner import BaseModule


class Backbone(BaseModule):
    def __init__(self, name, pretrained=True):
        super().__init__()
        self.model = timm.create_model(name, pretrained=True)
        self.model.reset_classifier(0, "")

    def forward(self, x):
        return self.model.forward_features(x)

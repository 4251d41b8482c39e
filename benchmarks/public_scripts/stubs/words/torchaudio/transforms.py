import torch


class Resample(torch.nn.Module):
    def __init__(self, orig_freq, new_freq):
        super().__init__()
        self._every = orig_freq // new_freq

    def forward(self, wave):
        return wave[..., :: self._every]

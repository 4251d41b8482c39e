import torch


class ListDataset(torch.utils.data.Dataset):
    def __init__(self, elements):
        self._elements = list(elements)

    def __len__(self):
        return len(self._elements)

    def __getitem__(self, n):
        return self._elements[n]


class TransformDataset(torch.utils.data.Dataset):
    def __init__(self, inner, transforms):
        self._inner, self._transforms = inner, transforms

    def __len__(self):
        return len(self._inner)

    def __getitem__(self, n):
        return self._transforms(self._inner[n])

"""Stands in for the hub's metrics: accuracy, computed here."""


class _Accuracy:
    def __init__(self):
        self.right = self.count = 0

    def add_batch(self, predictions, references):
        self.right += sum(int(p == r) for p, r in zip(predictions, references, strict=True))
        self.count += len(references)

    def compute(self, predictions=None, references=None):
        if predictions is not None:
            self.add_batch(predictions, references)
        return {"accuracy": self.right / max(1, self.count)}


def load(*names, **options):
    return _Accuracy()

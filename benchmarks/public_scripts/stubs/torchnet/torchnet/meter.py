class AverageValueMeter:
    def __init__(self):
        self.reset()

    def reset(self):
        self._sum = self._count = 0

    def add(self, value):
        self._sum += value
        self._count += 1

    def value(self):
        return self._sum / max(1, self._count), 0.0

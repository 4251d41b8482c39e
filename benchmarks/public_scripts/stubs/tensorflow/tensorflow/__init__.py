"""The parts of TensorFlow that scripts for PyTorch use: callbacks of Keras and a summary writer."""

import contextlib


class _Writer:
    def as_default(self):
        return contextlib.nullcontext()

    def flush(self):
        pass


class summary:
    @staticmethod
    def create_file_writer(folder):
        return _Writer()

    @staticmethod
    def scalar(*args, **kwargs):
        pass

    image = histogram = scalar

"""What a model is made of and how signal and gradient go through it, measured with one batch."""

from fallline.instruments.model.measure import measure_model, model_of_script
from fallline.instruments.model.report import ModelReport

__all__ = ["ModelReport", "measure_model", "model_of_script"]

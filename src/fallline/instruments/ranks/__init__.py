"""The ranks of a job: who they are, whether they reach each other, how fast, and whether they train the same model on different data."""

from fallline.instruments.ranks.judge import no_sync_gain, sampler_overlap
from fallline.instruments.ranks.measure import measure_ranks
from fallline.instruments.ranks.parameters import parameters_equal
from fallline.instruments.ranks.report import Ranks

__all__ = ["Ranks", "measure_ranks", "no_sync_gain", "parameters_equal", "sampler_overlap"]

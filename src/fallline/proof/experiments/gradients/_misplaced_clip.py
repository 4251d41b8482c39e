"""A clip that misses the step's gradients, against one that meets them and against none; one batch is an outlier."""

from __future__ import annotations

from dataclasses import dataclass

from fallline.proof.experiments._training import Run, Update, clipped, largest, plain, train

__all__ = ["MAX_NORM", "Comparison", "against_an_outlier"]

MAX_NORM = 5.0
_OUTLIER = 20


@dataclass(frozen=True)
class Comparison:
    """The same run with the clip in the wrong place and in the right one."""

    wrong: Run
    right: Run
    difference: float  # between the wrong run's parameters and those of a run that never clips

    @property
    def wrong_norm(self) -> float:
        """The norm that stepped at the outlier."""
        return self.wrong.norms[_OUTLIER]

    @property
    def right_norm(self) -> float:
        return self.right.norms[_OUTLIER]

    def sides(self) -> dict[str, dict[str, float]]:
        return {
            "wrong": {
                "norm that stepped at the outlier": self.wrong_norm,
                "loss right after it": self.wrong.losses[_OUTLIER + 1],
                "difference to no clipping at all": self.difference,
            },
            "right": {
                "norm that stepped at the outlier": self.right_norm,
                "loss right after it": self.right.losses[_OUTLIER + 1],
            },
        }

    def holds(self) -> dict[str, bool]:
        return {
            "the misplaced clip leaves every bit as without clipping": self.difference == 0,
            "though the outlier is far above the threshold": self.wrong_norm > 10 * MAX_NORM,
            "in its place it bounds the outlier": self.right_norm <= MAX_NORM * 1.001,
        }

    def curves(self) -> dict[str, list[float]]:
        return {"wrong": self.wrong.losses, "right": self.right.losses}


def against_an_outlier(misplaced: Update) -> Comparison:
    wrong, right, never = (
        train(update, outlier_at=_OUTLIER) for update in (misplaced, clipped(MAX_NORM), plain)
    )
    return Comparison(wrong, right, largest(wrong.parameters, never.parameters))

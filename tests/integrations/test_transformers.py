"""What the Hugging Face Trainer leaves undone: a model that takes `num_items_in_batch` and ignores it is never divided."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from heads import make, measured, update

torch.set_num_threads(1)
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "LlamaForCausalLM"])
def test_a_model_that_is_never_divided_is_found_and_repaired(tmp_path: Path, name: str) -> None:
    """docs/integrations.md has more models."""
    ratio, repaired, found = measured(name, tmp_path)
    undivided = name.startswith("Bert")
    assert ratio == pytest.approx(2 if undivided else 1, rel=2e-2)
    assert found == (["FL104"] if undivided else [])
    if undivided:
        assert repaired == pytest.approx(1, rel=2e-2)


def test_the_advice_is_about_the_trainer(tmp_path: Path) -> None:
    update(make("BertForSequenceClassification"), "texts", tmp_path, 4, 2)
    (finding,) = json.loads((tmp_path / "run" / "findings.json").read_text())
    assert "loss_is_scaled_for_ga = False" in finding["message"]


def test_training_again_after_an_error(tmp_path: Path) -> None:
    """The Trainer has no hook for an error: in a notebook the next training ends the run that was left open."""
    model = make("BertForSequenceClassification")
    broken = make("BertForSequenceClassification")
    broken.classifier.forward = lambda hidden: 1 / 0
    with pytest.raises(ZeroDivisionError):
        update(broken, "texts", tmp_path / "first", 4, 1)
    _, found = update(model, "texts", tmp_path / "second", 4, 1)
    assert found == []
    assert (tmp_path / "second" / "run" / "findings.json").exists()


def test_a_missing_framework_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from fallline.errors import UsageError

    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "fallline.integrations.transformers", raising=False)
    with pytest.raises(UsageError, match="pip install transformers"):
        import fallline.integrations.transformers  # noqa: F401

"""What Transformers' Trainer and TRL do with evaluation, checkpoints and schedules, as claims/trainer-evaluation.md says it. Each function fails if it is not so."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tests.triage.behaviours_tuning import _Scorer
from tests.triage.provoke_frameworks import _gpt, _tokenizer
from torch import nn

ROWS: Any = [{"x": torch.ones(1) * n, "labels": n % 3} for n in range(8)]


def _trainer(folder: str, model: nn.Module | None = None, **given: Any) -> Any:
    from transformers import Trainer, TrainingArguments

    own = {"compute_metrics", "callbacks", "optimizers", "eval_dataset", "model_init"}
    passed = {name: given.pop(name) for name in own & given.keys()}
    quiet = {"report_to": [], "use_cpu": True, "disable_tqdm": True}
    arguments = TrainingArguments(output_dir=folder, **{**quiet, "max_steps": 4, **given})
    passed.setdefault("eval_dataset", ROWS)
    if "model_init" not in passed:
        passed["model"] = model or _Scorer()
    return Trainer(args=arguments, train_dataset=ROWS, **passed)


def _accuracy(pred: Any) -> dict[str, float]:
    return {"accuracy": float((pred.predictions.argmax(-1) == pred.label_ids).mean())}


def metrics_need_an_evaluation_with_labels() -> None:
    unlabelled: Any = [{"x": torch.ones(1)}] * 4
    with TemporaryDirectory() as folder:
        assert "eval_accuracy" in _trainer(folder, compute_metrics=_accuracy).evaluate()
        silent = _trainer(folder, compute_metrics=_accuracy, eval_dataset=unlabelled)
        assert "eval_accuracy" not in silent.evaluate()
        only_loss = _trainer(folder, compute_metrics=_accuracy, prediction_loss_only=True)
        assert "eval_accuracy" not in only_loss.evaluate()
        trainer = _trainer(folder, compute_metrics=_accuracy, save_strategy="no")
        trainer.train()  # eval_strategy is "no" by default
        assert not any("eval_loss" in row for row in trainer.state.log_history)


def metrics_can_get_inputs_and_losses() -> None:
    seen: list[Any] = []

    def look(pred: Any) -> dict[str, float]:
        seen.append((pred.inputs, pred.losses))
        return {}

    with TemporaryDirectory() as folder:
        model = _Scorer()
        model.main_input_name = "x"  # type: ignore[assignment]
        _trainer(
            folder, model, compute_metrics=look, include_for_metrics=["inputs", "loss"]
        ).evaluate()
    inputs, losses = seen[0]
    assert len(inputs) == 8 and losses is not None


def extra_outputs_make_predictions_a_tuple() -> None:
    class Two(_Scorer):
        def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, Any]:
            return {**super().forward(x, labels), "hidden": x}

    seen: list[Any] = []

    def look(pred: Any) -> dict[str, float]:
        seen.append(pred.predictions)
        return {}

    with TemporaryDirectory() as folder:
        _trainer(folder, Two(), compute_metrics=look).evaluate()
    assert isinstance(seen[0], tuple) and seen[0][0].shape == (8, 3)


_BEST: dict[str, Any] = {
    "eval_strategy": "steps",
    "eval_steps": 1,
    "save_strategy": "steps",
    "save_steps": 1,
    "load_best_model_at_end": True,
}


def the_best_checkpoint_follows_the_metric() -> None:
    from transformers import TrainingArguments

    with TemporaryDirectory() as folder:
        trainer = _trainer(folder, **_BEST, learning_rate=10.0)
        trainer.train()
        losses = {r["step"]: r["eval_loss"] for r in trainer.state.log_history if "eval_loss" in r}
        best = min(losses, key=lambda step: losses[step])
        assert trainer.state.best_model_checkpoint.endswith(f"checkpoint-{best}")
        assert abs(trainer.evaluate()["eval_loss"] - losses[best]) < 1e-5
        for name, greater in (("loss", False), ("accuracy", True)):
            given = TrainingArguments(folder, **_BEST, metric_for_best_model=name, use_cpu=True)
            assert given.greater_is_better is greater


def the_best_checkpoint_is_not_deleted() -> None:
    with TemporaryDirectory() as folder:
        values = iter([0.1, 0.9, 0.2, 0.3, 0.9])
        trainer = _trainer(
            folder,
            **_BEST,
            save_total_limit=1,
            metric_for_best_model="accuracy",
            compute_metrics=lambda _: {"accuracy": next(values)},
        )
        trainer.train()
        assert {p.name for p in Path(folder).iterdir()} == {"checkpoint-2"}


def patience_counts_evaluations() -> None:
    from transformers import EarlyStoppingCallback

    with TemporaryDirectory() as folder:
        stop = EarlyStoppingCallback(early_stopping_patience=2)
        given = {**_BEST, "max_steps": 20, "metric_for_best_model": "accuracy"}
        trainer = _trainer(
            folder, **given, callbacks=[stop], compute_metrics=lambda _: {"accuracy": 0.5}
        )
        trainer.train()
        assert (
            trainer.state.global_step == 3
        )  # the first is the best, then two without a better one


def the_trainer_logs_every_logging_steps() -> None:
    from transformers import TrainingArguments

    with TemporaryDirectory() as folder:
        assert TrainingArguments(folder, use_cpu=True).logging_steps == 500
        trainer = _trainer(folder, logging_steps=2, save_strategy="no")
        trainer.train()
    assert [row["step"] for row in trainer.state.log_history if "loss" in row] == [2, 4]


def the_trainer_counts_updates() -> None:
    with TemporaryDirectory() as folder:
        given = {"max_steps": -1, "num_train_epochs": 2, "save_strategy": "no"}
        trainer = _trainer(
            folder, **given, per_device_train_batch_size=2, gradient_accumulation_steps=3
        )
        trainer.train()
        assert trainer.state.max_steps == trainer.state.global_step == 4  # ceil(8 / 6) * 2
        both = _trainer(folder, max_steps=3, num_train_epochs=9, save_strategy="no")
        both.train()
        assert both.state.global_step == 3


def the_trainer_schedules_linearly() -> None:
    with TemporaryDirectory() as folder:
        trainer = _trainer(folder, logging_steps=1, save_strategy="no", learning_rate=0.4)
        trainer.train()
        rates = [row["learning_rate"] for row in trainer.state.log_history if "loss" in row]
        warm = _trainer(
            folder, logging_steps=1, save_strategy="no", learning_rate=0.4, warmup_steps=0.5
        )
        warm.train()
        warmed = [row["learning_rate"] for row in warm.state.log_history if "loss" in row]
    assert torch.allclose(torch.tensor(rates), torch.tensor([0.4, 0.3, 0.2, 0.1]))
    assert warmed[0] == 0 and max(warmed) == warmed[2]


def the_trainer_takes_an_optimizer() -> None:
    model = _Scorer()
    own = torch.optim.SGD(model.parameters(), lr=0.25)
    with TemporaryDirectory() as folder:
        trainer = _trainer(
            folder, model, optimizers=(own, None), learning_rate=9.0, save_strategy="no"
        )
        trainer.train()
        assert own.param_groups[0]["initial_lr"] == 0.25


def the_trainer_resumes_its_step() -> None:
    with TemporaryDirectory() as folder:
        _trainer(folder, save_steps=2, max_steps=2).train()
        seen: list[int] = []
        more = _trainer(folder, save_strategy="no")
        more.model.register_forward_hook(lambda *_: seen.append(1))
        more.train(resume_from_checkpoint=True)
        assert more.state.global_step == 4 and len(seen) == 2
        again = _trainer(folder, save_strategy="no", max_steps=2)
        again.train(resume_from_checkpoint=True)
        assert again.state.global_step == 2  # it was reached: nothing is left to do


def the_head_is_drawn_before_the_trainer_seeds() -> None:
    with TemporaryDirectory() as folder:
        torch.manual_seed(1)
        one = _trainer(folder, _Scorer(), seed=7).model.out.weight.clone()
        torch.manual_seed(2)
        two = _trainer(folder, _Scorer(), seed=7).model.out.weight.clone()
        made = [_trainer(folder, model_init=_Scorer, seed=7) for _ in range(2)]
    assert not torch.equal(one, two)
    assert torch.equal(made[0].model.out.weight, made[1].model.out.weight)


def the_problem_type_chooses_the_loss() -> None:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    ids = torch.ones(2, 3, dtype=torch.long)
    for labels, count, kind in (
        (torch.tensor([0, 1]), 3, "single_label_classification"),
        (torch.ones(2, 3), 3, "multi_label_classification"),
        (torch.ones(2), 1, "regression"),
    ):
        config = BertConfig(vocab_size=5, intermediate_size=8, num_labels=count, **sizes)
        model = BertForSequenceClassification(config)
        model(ids, labels=labels)
        assert model.config.problem_type == kind


def the_trainer_smooths_instead_of_the_model() -> None:
    from transformers import PretrainedConfig

    seen: list[Any] = []

    class Watched(_Scorer):
        def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, Any]:
            seen.append(labels)
            return super().forward(x, labels)

    model = Watched()
    model.config = PretrainedConfig()  # type: ignore[assignment]
    with TemporaryDirectory() as folder:
        given = {"save_strategy": "no", "max_steps": 1, "label_smoothing_factor": 0.1}
        _trainer(folder, model, **given).train()
    assert seen == [None]


def eval_sets_get_their_names() -> None:
    with TemporaryDirectory() as folder:
        logged = _trainer(folder, eval_dataset={"val": ROWS, "train": ROWS[:4]}).evaluate()
    assert {"eval_val_loss", "eval_train_loss"} <= logged.keys()


def collators_pad_labels_with_minus_100() -> None:
    from transformers import DataCollatorForLanguageModeling, DataCollatorForTokenClassification

    words = _tokenizer()
    rows = [{"input_ids": [2, 3]}, {"input_ids": [2]}]
    batch = DataCollatorForLanguageModeling(words, mlm=False)([dict(row) for row in rows])
    assert batch["labels"].tolist() == [[2, 3], [2, -100]]  # padding ignored, nothing shifted
    tagged = [{**row, "labels": [1] * len(row["input_ids"])} for row in rows]
    assert DataCollatorForTokenClassification(words)(tagged)["labels"].tolist()[1] == [1, -100]


def trl_appends_the_end_token() -> None:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    with TemporaryDirectory() as folder:
        given = SFTConfig(folder, use_cpu=True, report_to=[], bf16=False, max_length=8)
        rows = Dataset.from_dict({"text": ["a b"]})
        trainer = SFTTrainer(_gpt(), given, train_dataset=rows, processing_class=_tokenizer())
        ids = trainer.train_dataset[0]["input_ids"]
    assert ids[-1] == _tokenizer().eos_token_id and ids.count(ids[-1]) == 1

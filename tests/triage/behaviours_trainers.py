"""What claims of the Trainer, Lightning and DeepSpeed rest on (`claims/trainers-notes.md`)."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from tests.triage.behaviours_aligning import _helps
from tests.triage.behaviours_distributed import _documents
from torch import nn


def _arguments(**given: Any) -> Any:
    from transformers import TrainingArguments

    return TrainingArguments(output_dir="unused", use_cpu=True, report_to=[], **given)


def _trainer(model: nn.Module, **given: Any) -> Any:
    from transformers import Trainer

    return Trainer(model=model, args=_arguments(**given))


def trainer_documents_its_sampling() -> None:
    from transformers import TrainingArguments

    _helps(TrainingArguments, "train_sampling_strategy", "'group_by_length'")


def trainer_documents_its_columns() -> None:
    from transformers import Trainer, TrainingArguments

    _helps(TrainingArguments, "remove_unused_columns", "unused by the model forward method")
    assert "signature" in inspect.getsource(Trainer._remove_unused_columns)


def trainer_casts_nothing() -> None:
    model = nn.Linear(2, 2)
    trainer = _trainer(model, bf16=True)
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}
    assert torch.ones(1, dtype=torch.bfloat16) + 1 / 512 == torch.ones(1)


def loading_takes_the_saved_dtype() -> None:
    import tempfile

    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=16,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    with tempfile.TemporaryDirectory() as home:
        LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(home)
        assert LlamaForCausalLM.from_pretrained(home).dtype == torch.bfloat16
        assert LlamaForCausalLM.from_pretrained(home, dtype=torch.float32).dtype == torch.float32


def the_trainer_takes_fused_adamw() -> None:
    from transformers.training_args import OptimizerNames

    assert _arguments().optim == OptimizerNames.ADAMW_TORCH_FUSED
    assert {"adamw_bnb_8bit", "paged_adamw_8bit"} <= {o.value for o in OptimizerNames}


def the_trainer_spares_biases_and_norms() -> None:
    model = nn.ModuleDict(
        {"embed": nn.Embedding(3, 4), "norm": nn.LayerNorm(4), "out": nn.Linear(4, 2)}
    )
    assert set(_trainer(model).get_decay_parameter_names(model)) == {"embed.weight", "out.weight"}
    assert _arguments().weight_decay == 0.0


def the_trainer_takes_an_optimizer() -> None:
    from transformers import Trainer

    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.AdamW(
        [
            {"params": model[0].parameters(), "lr": 1e-5},
            {"params": model[1].parameters(), "lr": 1e-3},
        ]
    )
    trainer = Trainer(model=model, args=_arguments(), optimizers=(optimizer, None))
    trainer.create_optimizer_and_scheduler(num_training_steps=10)
    optimizer.step()
    trainer.lr_scheduler.step()
    slow, fast = (group["lr"] for group in optimizer.param_groups)
    assert trainer.optimizer is optimizer and abs(fast / slow - 100) < 1e-6


def trainer_documents_data_skip() -> None:
    from transformers import TrainingArguments

    _helps(TrainingArguments, "ignore_data_skip", "starts from the beginning of the dataset")


def trainer_resumes_by_argument() -> None:
    from transformers import Trainer, TrainingArguments

    assert "resume_from_checkpoint" in inspect.signature(Trainer.train).parameters
    _helps(TrainingArguments, "resume_from_checkpoint", "Not directly used by Trainer")


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["[PAD]", "[MASK]", "[UNK]", "<s>", "a", "b", "c", "d"]
    made = Tokenizer(models.WordLevel({w: n for n, w in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="[PAD]",
        mask_token="[MASK]",
        bos_token="<s>",
        unk_token="[UNK]",
    )


def the_masking_collator_masks_15_percent() -> None:
    from transformers import DataCollatorForLanguageModeling

    torch.manual_seed(0)
    tokenizer = _tokenizer()
    samples = [{"input_ids": [4, 5, 6, 7] * 100} for _ in range(10)]
    labels = DataCollatorForLanguageModeling(tokenizer)(samples)["labels"]
    assert 0.12 < (labels != -100).float().mean() < 0.18
    plain = DataCollatorForLanguageModeling(tokenizer, mlm=False)(samples)
    assert torch.equal(plain["labels"], plain["input_ids"])


def tokenizers_document_stride() -> None:
    tokenizer = _tokenizer()
    cut = tokenizer(
        "a b c d a b c d", truncation=True, max_length=4, stride=2, return_overflowing_tokens=True
    )
    assert cut["input_ids"] == [[4, 5, 6, 7], [6, 7, 4, 5], [4, 5, 6, 7]]
    assert cut["overflow_to_sample_mapping"] == [0, 0, 0]


def a_template_writes_its_own_special_tokens() -> None:
    tokenizer = _tokenizer()
    tokenizer.chat_template = (
        "{{ bos_token }} {% for m in messages %}{{ m['content'] }}{% endfor %}"
    )
    text = tokenizer.apply_chat_template([{"role": "user", "content": "a b"}], tokenize=False)
    assert tokenizer(text, add_special_tokens=False)["input_ids"].count(3) == 1


def the_seq2seq_collator_pads_labels() -> None:
    from transformers import DataCollatorForSeq2Seq

    samples = [{"input_ids": [4, 5], "labels": [4]}, {"input_ids": [4], "labels": [4, 5, 6]}]
    batch = DataCollatorForSeq2Seq(_tokenizer())(samples)
    assert batch["labels"].tolist() == [[4, -100, -100], [4, 5, 6]]
    assert batch["input_ids"].tolist() == [[4, 5], [4, 0]]


def lightning_documents_validation() -> None:
    from lightning import Trainer

    said = " ".join((Trainer.__init__.__doc__ or "").split())
    assert "fraction of the training epoch" in said or "within a training epoch" in said
    assert "check_val_every_n_epoch=None" in said


def lightning_manual_optimization_is_documented() -> None:
    from lightning import LightningModule

    _documents(LightningModule.manual_backward, "scaling")
    assert callable(LightningModule.clip_gradients)


def lightning_restores_the_optimizer() -> None:
    from lightning.pytorch.trainer.connectors.checkpoint_connector import _CheckpointConnector

    assert callable(_CheckpointConnector.restore_optimizers)
    assert callable(_CheckpointConnector.restore_lr_schedulers)


def lightning_knows_its_strategies() -> None:
    from lightning.pytorch.strategies import FSDPStrategy, StrategyRegistry

    names = set(StrategyRegistry.available_strategies())
    assert {"ddp", "ddp_notebook", "ddp_spawn", "ddp_find_unused_parameters_true", "fsdp"} <= names
    assert "state_dict_type" in inspect.signature(FSDPStrategy.__init__).parameters


def generate_can_be_synchronised() -> None:
    from transformers import GenerationMixin

    assert "synced_gpus" in inspect.signature(GenerationMixin.generate).parameters


def deepspeed_takes_over() -> None:
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    source = inspect.getsource(HfTrainerDeepSpeedConfig)
    assert "gradient_clipping" in source and "max_grad_norm" in source and '"auto"' in source


def layers_on_devices_run_in_turn() -> None:
    order = []
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    for name, layer in model.named_children():
        layer.register_forward_hook(lambda *_, name=name: order.append(name))
    model(torch.ones(1, 2))
    assert order == ["0", "1"]


def the_trainer_logs_a_mean() -> None:
    from transformers import Trainer

    source = inspect.getsource(Trainer._maybe_log_save_evaluate)
    assert "_globalstep_last_logged" in source and "tr_loss" in source


def accelerate_names_the_shards_script() -> None:
    from accelerate import Accelerator

    source = inspect.getsource(Accelerator.get_state_dict)
    assert "zero_to_fp32.py" in source and "stage3_gather_16bit_weights_on_model_save" in source


def accelerate_replaces_an_offloaded_adam() -> None:
    from accelerate import Accelerator

    source = inspect.getsource(inspect.getmodule(Accelerator))  # type: ignore[arg-type]
    assert "zero_force_ds_cpu_optimizer" in source and "map_pytorch_optim_to_deepspeed" in source

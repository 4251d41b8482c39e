"""Errors of PEFT, TRL, Transformers, Accelerate and Lightning in training, provoked with tiny models on a CPU. A function's name is its claim's."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn


def _gpt(**changed: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=20, n_positions=16, n_embd=8, n_layer=1, n_head=2, **changed)
    return GPT2LMHeadModel(config)


@cache
def _tokenizer() -> Any:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = {word: n for n, word in enumerate(["<pad>", "</s>", "a", "b"])}
    made = Tokenizer(WordLevel(words, unk_token="a"))
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="</s>")


def _rows(**columns: list[Any]) -> Any:
    from datasets import Dataset

    return Dataset.from_dict(columns)


def _quiet(**given: Any) -> dict[str, Any]:
    return {"report_to": [], "use_cpu": True, "disable_tqdm": True, "max_steps": 1, **given}


# --- PEFT ----------------------------------------------------------------------------------------------------------------------------
def peft_no_target_modules() -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import PretrainedConfig, PreTrainedModel

    class Odd(PreTrainedModel):
        config_class = PretrainedConfig

        def __init__(self) -> None:
            super().__init__(PretrainedConfig(model_type="odd"))
            self.layer = nn.Linear(2, 2)

    get_peft_model(Odd(), LoraConfig())


def peft_modules_not_found() -> None:
    from peft import LoraConfig, get_peft_model

    get_peft_model(_gpt(), LoraConfig(target_modules=["q_proj", "v_proj"]))


def peft_module_not_supported() -> None:
    from peft import LoraConfig, get_peft_model

    get_peft_model(_gpt(), LoraConfig(target_modules=["ln_1"]))


def peft_rank_not_positive() -> None:
    from peft import LoraConfig, get_peft_model

    get_peft_model(_gpt(), LoraConfig(r=0, target_modules=["c_attn"]))


def peft_already_wrapped() -> None:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(target_modules=["c_attn"])
    get_peft_model(get_peft_model(_gpt(), config), config)


def peft_no_adapter_config() -> None:
    from peft import PeftModel

    with tempfile.TemporaryDirectory() as folder:
        PeftModel.from_pretrained(_gpt(), folder)


def peft_no_such_adapter() -> None:
    from peft import LoraConfig, get_peft_model

    get_peft_model(_gpt(), LoraConfig(target_modules=["c_attn"])).set_adapter("other")


def peft_adapter_exists() -> None:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(target_modules=["c_attn"])
    get_peft_model(_gpt(), config).add_adapter(
        "default", LoraConfig(r=4, target_modules=["c_attn"])
    )


def peft_task_type() -> None:
    from peft import LoraConfig

    LoraConfig(task_type="CAUSAL")


def peft_size_mismatch() -> None:
    from peft import LoraConfig, PeftModel, get_peft_model

    with tempfile.TemporaryDirectory() as folder:
        get_peft_model(_gpt(), LoraConfig(target_modules=["c_attn"])).save_pretrained(folder)
        wide = _gpt()
        wide.transformer.h[0].attn.c_attn = type(wide.transformer.h[0].attn.c_attn)(12, 8)
        PeftModel.from_pretrained(wide, folder)


def peft_missing_adapter_keys() -> None:
    from peft import LoraConfig, PeftModel, get_peft_model

    with tempfile.TemporaryDirectory() as folder:
        saved = get_peft_model(_gpt(), LoraConfig(target_modules=["c_attn"]))
        saved.save_pretrained(folder)
        from safetensors.torch import load_file, save_file

        path = Path(folder) / "adapter_model.safetensors"
        save_file({f"x.{k}": v for k, v in load_file(path).items()}, path)
        PeftModel.from_pretrained(_gpt(), folder)


def peft_quantised_training() -> None:
    from transformers import Trainer, TrainingArguments

    model = _gpt()
    model.is_quantized = True
    model.hf_quantizer = type(
        "Q",
        (),
        {"is_trainable": False, "quantization_config": type("C", (), {"quant_method": "x"})},
    )()
    Trainer(model, TrainingArguments("out", **_quiet()))


# --- TRL -----------------------------------------------------------------------------------------------------------------------------
def grpo_generations_divide() -> None:
    from trl import GRPOConfig

    GRPOConfig("out", per_device_train_batch_size=10, num_generations=8, use_cpu=True, report_to=[])


def grpo_one_generation() -> None:
    from trl import GRPOConfig

    GRPOConfig("out", per_device_train_batch_size=1, num_generations=1, use_cpu=True, report_to=[])


def sft_peft_twice() -> None:
    from peft import LoraConfig, get_peft_model
    from trl import SFTConfig, SFTTrainer

    config = LoraConfig(target_modules=["c_attn"])
    model = get_peft_model(_gpt(), config)
    SFTTrainer(
        model, SFTConfig("out", **_quiet()), train_dataset=_rows(text=["a b"]),
        processing_class=_tokenizer(), peft_config=config,
    )  # fmt: skip


def sft_assistant_only() -> None:
    from trl import SFTConfig, SFTTrainer

    SFTTrainer(
        _gpt(), SFTConfig("out", assistant_only_loss=True, **_quiet()),
        train_dataset=_rows(text=["a b"]), processing_class=_tokenizer(),
    )  # fmt: skip


def sft_eos_not_in_vocabulary() -> None:
    from trl import SFTConfig, SFTTrainer

    SFTTrainer(
        _gpt(), SFTConfig("out", eos_token="<|im_end|>", **_quiet()),
        train_dataset=_rows(text=["a b"]), processing_class=_tokenizer(),
    )  # fmt: skip


def dpo_same_reference() -> None:
    from trl import DPOConfig, DPOTrainer

    model = _gpt()
    DPOTrainer(
        model, model, DPOConfig("out", **_quiet()),
        train_dataset=_rows(prompt=["a"], chosen=["a"], rejected=["b"]), processing_class=_tokenizer(),
    )  # fmt: skip


def grpo_rewards_count() -> None:
    from trl import GRPOConfig, GRPOTrainer

    GRPOTrainer(
        _gpt(), reward_funcs=[lambda completions, **_: [1.0]],
        args=GRPOConfig("out", reward_weights=[0.5, 0.5], per_device_train_batch_size=2, num_generations=2, **_quiet()),
        train_dataset=_rows(prompt=["a", "b"]), processing_class=_tokenizer(),
    )  # fmt: skip


def trl_no_dataset() -> None:
    from trl import SFTConfig, SFTTrainer

    SFTTrainer(_gpt(), SFTConfig("out", **_quiet()), processing_class=_tokenizer())


# --- Transformers --------------------------------------------------------------------------------------------------------------------
def hf_unpadded_labels() -> None:
    from transformers import DataCollatorWithPadding

    rows = [{"input_ids": [2], "labels": [2]}, {"input_ids": [2, 3], "labels": [2, 3]}]
    DataCollatorWithPadding(_tokenizer())(rows)


def hf_no_train_dataset() -> None:
    from transformers import Trainer, TrainingArguments

    Trainer(_gpt(), TrainingArguments("out", **_quiet())).train()


def hf_no_checkpoint_to_resume() -> None:
    from transformers import Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            _gpt(), TrainingArguments(folder, **_quiet()), train_dataset=_rows(input_ids=[[1]])
        )
        trainer.train(resume_from_checkpoint=True)


def hf_unexpected_argument() -> None:
    from transformers import TrainingArguments

    TrainingArguments("out", evaluation_strategy="epoch")


def hf_tokenizer_argument() -> None:
    from transformers import Trainer, TrainingArguments

    Trainer(_gpt(), TrainingArguments("out", **_quiet()), tokenizer=_tokenizer())


def hf_position_out_of_range() -> None:
    model = _gpt()
    model(torch.ones(1, 40, dtype=torch.long))


def hf_not_divisible_heads() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(GPT2Config(vocab_size=20, n_embd=10, n_layer=1, n_head=3))


def hf_metric_for_best() -> None:
    from transformers import Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder,
            eval_strategy="steps",
            save_strategy="best",
            metric_for_best_model="f1",
            eval_steps=1,
            **_quiet(),
        )
        rows = _rows(input_ids=[[2, 3]], labels=[[2, 3]])
        Trainer(_gpt(), args, train_dataset=rows, eval_dataset=rows).train()


# --- Accelerate ----------------------------------------------------------------------------------------------------------------------
def accelerate_no_state() -> None:
    from accelerate import Accelerator

    Accelerator(cpu=True).load_state("/nowhere/state")


def accelerate_mixed_precision_value() -> None:
    from accelerate import Accelerator

    Accelerator(cpu=True, mixed_precision="float16")


def accelerate_two_accumulations() -> None:
    from accelerate import Accelerator
    from accelerate.utils import GradientAccumulationPlugin

    Accelerator(
        cpu=True, gradient_accumulation_steps=2,
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=2),
    )  # fmt: skip


def accelerate_split_batches() -> None:
    from accelerate.data_loader import BatchSamplerShard
    from torch.utils.data import BatchSampler, SequentialSampler

    sampler = BatchSampler(SequentialSampler(range(10)), batch_size=3, drop_last=False)
    BatchSamplerShard(sampler, num_processes=2, process_index=0, split_batches=True)


# --- Lightning -----------------------------------------------------------------------------------------------------------------------
def _fit(step: Any, **given: Any) -> None:
    import lightning
    from torch.utils.data import DataLoader

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)
            self.automatic_optimization = given.pop("automatic", True)

        def training_step(self, batch: Any, index: int) -> Any:
            return step(self, batch)

        def configure_optimizers(self) -> Any:
            return given.get("optimizers", lambda m: torch.optim.SGD(m.parameters(), lr=0.1))(self)

    kept = {k: v for k, v in given.items() if k not in ("optimizers", "automatic")}
    trainer = lightning.Trainer(
        max_steps=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accelerator="cpu", **kept,
    )  # fmt: skip
    trainer.fit(Net(), DataLoader(torch.ones(4, 2), batch_size=2))


def lightning_step_returns() -> None:
    _fit(lambda net, batch: [net.layer(batch).sum()])


def lightning_dict_without_loss() -> None:
    _fit(lambda net, batch: {"value": net.layer(batch).sum()})


def lightning_manual() -> None:
    _fit(lambda net, batch: None, automatic=False, gradient_clip_val=1.0)


def lightning_two_optimizers() -> None:
    def both(net: Any) -> Any:
        return [
            torch.optim.SGD(net.parameters(), lr=0.1),
            torch.optim.SGD(net.parameters(), lr=0.1),
        ]

    _fit(lambda net, batch: net.layer(batch).sum(), optimizers=both)


def lightning_scheduler_monitor() -> None:
    def plateau(net: Any) -> Any:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        return {
            "optimizer": optimizer,
            "lr_scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer),
        }

    _fit(lambda net, batch: net.layer(batch).sum(), optimizers=plateau)


def lightning_unknown_precision() -> None:
    import lightning

    lightning.Trainer(precision="fp16", accelerator="cpu", logger=False)


def lightning_log_outside() -> None:
    import lightning

    class Net(lightning.LightningModule):
        pass

    Net().log("loss", 1.0)

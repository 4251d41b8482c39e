"""Tiny models and tokenizers: real architectures of Transformers with two layers, and a byte-level tokenizer trained in a moment."""

from __future__ import annotations

import os
import tempfile
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)

ANIMALS = (
    "cat",
    "dog",
    "fox",
    "owl",
    "bee",
    "ant",
    "cow",
    "hen",
    "yak",
    "elk",
    "emu",
    "koi",
    "ram",
    "rat",
    "bat",
    "pig",
)
DOES = (
    "sleeps in the sun",
    "runs over the hill",
    "looks at the moon",
    "eats all day long",
    "hides under a stone",
    "sings to the rain",
)
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHATML_MASKED = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}{{ '<|im_start|>assistant\n' }}{% generation %}{{ m['content'] + '<|im_end|>\n' }}{% endgeneration %}"
    "{% else %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA_CHAT = "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}{% else %}{{ ' ' + m['content'] + eos_token }}{% endif %}{% endfor %}"


def texts(count: int = 24, long: bool = False) -> list[str]:
    """Sentences that are all different, and of different length."""
    found = []
    for i in range(count):
        tail = " and then " + DOES[(i + 1) % 6] if long or i % 3 == 0 else ""
        found.append(f"the {ANIMALS[i % 16]} {DOES[i % 6]}{tail} for {i} days")
    return found


def pairs(count: int = 24) -> list[tuple[str, str]]:
    """Questions and answers."""
    return [
        (
            f"what does the {ANIMALS[i % 16]} do on day {i}?",
            f"it {DOES[i % 6]}" + " happily" * (i % 3),
        )
        for i in range(count)
    ]


def chats(count: int = 24) -> list[dict[str, Any]]:
    """Conversations of one turn."""
    return [
        {"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]}
        for q, a in pairs(count)
    ]


def tokenizer(
    *, pad: str | None = "<pad>", bos: bool = True, adds_bos: bool = True, chat: str | None = None
) -> Any:
    """A byte-level tokenizer of Transformers."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    special = ["<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    raw.train_from_iterator([*texts(16), *(q + a for q, a in pairs(16))], trainer)
    if adds_bos and bos:
        raw.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 1)]
        )
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw,
        bos_token="<s>" if bos else None,
        eos_token="</s>",
        pad_token=pad,
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
    )
    made.chat_template = chat
    return made


def model(kind: str = "llama", vocabulary: int = 420, **options: Any) -> Any:
    """A language model of two layers, with random weights."""
    torch.manual_seed(0)
    if kind == "gpt2":
        config: Any = transformers.GPT2Config(
            vocab_size=vocabulary,
            n_embd=32,
            n_layer=2,
            n_head=2,
            n_positions=256,
            bos_token_id=1,
            eos_token_id=2,
            **options,
        )
    else:
        name = {
            "llama": "LlamaConfig",
            "qwen2": "Qwen2Config",
            "mistral": "MistralConfig",
            "gemma": "GemmaConfig",
        }[kind]
        config = getattr(transformers, name)(
            vocab_size=vocabulary,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=256,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
            **options,
        )
    return transformers.AutoModelForCausalLM.from_config(config)


def loader(samples: list[Any], collate: Any = None, batch: int = 4, shuffle: bool = False) -> Any:
    return torch.utils.data.DataLoader(
        samples, batch_size=batch, collate_fn=collate, shuffle=shuffle
    )


def folder() -> str:
    return tempfile.mkdtemp(prefix="tiny")


def arguments(**options: Any) -> Any:
    """For a Trainer on a CPU that writes nothing."""
    plain = {
        "output_dir": folder(),
        "per_device_train_batch_size": 4,
        "max_steps": 6,
        "report_to": [],
        "use_cpu": True,
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    return transformers.TrainingArguments(**(plain | options))


def quiet(**options: Any) -> dict[str, Any]:
    """The same for TRL's configurations."""
    plain = {
        "output_dir": folder(),
        "per_device_train_batch_size": 4,
        "max_steps": 6,
        "report_to": [],
        "use_cpu": True,
        "save_strategy": "no",
        "disable_tqdm": True,
        "bf16": False,
    }
    return plain | options


def saved(kind: str = "llama", **options: Any) -> str:
    """The same model as a folder: trainers load their reference from there."""
    home = folder()
    model(kind, **options).save_pretrained(home)
    return home

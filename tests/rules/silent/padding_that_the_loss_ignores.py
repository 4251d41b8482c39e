from torch import nn
from transformers import GPT2TokenizerFast

tokenizer = GPT2TokenizerFast.from_pretrained("gpt2")
tokenizer.add_special_tokens({"pad_token": "[PAD]"})


def compute_loss(logits, targets):
    criterion = nn.CrossEntropyLoss(ignore_index=tokenizer.pad_token_id)
    return criterion(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten())


def preprocess(example):
    enc = tokenizer(example["text"], truncation=True, padding="max_length", max_length=256)
    enc["labels"] = enc["input_ids"].copy()
    return enc

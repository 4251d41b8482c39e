# FL014: after artidoro/qlora's qlora.py, without add_special_tokens=False
import torch
from peft import LoraConfig, get_peft_model
from tiny import arguments, model, pairs, tokenizer
from torch.nn.utils.rnn import pad_sequence
from transformers import Trainer

words = tokenizer()


def collate(rows):
    sources = words([f"{words.bos_token}{q}" for q, _ in rows])["input_ids"]
    targets = words([f"{a}{words.eos_token}" for _, a in rows], add_special_tokens=False)
    ids, labels = [], []
    for source, target in zip(sources, targets["input_ids"], strict=True):
        ids.append(torch.tensor(source + target))
        labels.append(torch.tensor([-100] * len(source) + target))
    ids = pad_sequence(ids, batch_first=True, padding_value=words.pad_token_id)
    labels = pad_sequence(labels, batch_first=True, padding_value=-100)
    return {"input_ids": ids, "attention_mask": ids.ne(words.pad_token_id), "labels": labels}


lora = LoraConfig(r=8, target_modules="all-linear", lora_dropout=0.0, task_type="CAUSAL_LM")
options = arguments(remove_unused_columns=False)
trainer = Trainer(
    get_peft_model(model(), lora), options, train_dataset=pairs(), data_collator=collate
)
trainer.train()  # HERE

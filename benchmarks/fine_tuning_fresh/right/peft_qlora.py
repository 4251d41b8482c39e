# after artidoro/qlora's qlora.py: a padding token is added, and its row is the mean of the others
import torch
from peft import LoraConfig, get_peft_model
from tiny import arguments, model, pairs, tokenizer
from torch.nn.utils.rnn import pad_sequence
from transformers import Trainer

words = tokenizer(pad=None)
net = model(vocabulary=len(words))
added = words.add_special_tokens({"pad_token": "[PAD]"})
net.resize_token_embeddings(len(words))
with torch.no_grad():
    for weight in (net.get_input_embeddings().weight, net.get_output_embeddings().weight):
        weight[-added:] = weight[:-added].mean(dim=0, keepdim=True)


def collate(rows):
    sources = words([f"{words.bos_token}{q}" for q, _ in rows], add_special_tokens=False)
    targets = words([f"{a}{words.eos_token}" for _, a in rows], add_special_tokens=False)
    ids, labels = [], []
    for source, target in zip(sources["input_ids"], targets["input_ids"], strict=True):
        ids.append(torch.tensor(source + target))
        labels.append(torch.tensor([-100] * len(source) + target))
    ids = pad_sequence(ids, batch_first=True, padding_value=words.pad_token_id)
    labels = pad_sequence(labels, batch_first=True, padding_value=-100)
    return {"input_ids": ids, "attention_mask": ids.ne(words.pad_token_id), "labels": labels}


lora = LoraConfig(r=8, target_modules="all-linear", lora_dropout=0.1, task_type="CAUSAL_LM")
options = arguments(remove_unused_columns=False, learning_rate=2e-4)
Trainer(get_peft_model(net, lora), options, train_dataset=pairs(), data_collator=collate).train()

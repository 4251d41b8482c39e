# FL011: a collator of one's own looks for a response template that the tokenizer writes differently
from datasets import Dataset
from tiny import CHATML, chats, model, quiet, tokenizer
from trl import SFTConfig, SFTTrainer

words = tokenizer(chat=CHATML)
template = words("\nassistant", add_special_tokens=False)["input_ids"]


def collate(samples):
    batch = words.pad({"input_ids": [s["input_ids"] for s in samples]}, return_tensors="pt")
    labels = batch["input_ids"].clone()
    for row, ids in enumerate(batch["input_ids"].tolist()):
        starts = [i for i in range(len(ids)) if ids[i : i + len(template)] == template]
        labels[row, : starts[0] if starts else len(ids)] = -100
    return {**batch, "labels": labels}


data = Dataset.from_list(chats())
trainer = SFTTrainer(
    model(),
    args=SFTConfig(**quiet()),
    train_dataset=data,
    processing_class=words,
    data_collator=collate,
)
trainer.train()  # HERE

# gradient accumulation, and labels by the seq2seq collator
from tiny import arguments, model, pairs, tokenizer
from transformers import DataCollatorForSeq2Seq, Trainer

words = tokenizer()
data = []
for question, answer in pairs():
    q, a = (
        words(question)["input_ids"],
        words(answer + "</s>", add_special_tokens=False)["input_ids"],
    )
    data.append(
        {"input_ids": q + a, "labels": [-100] * len(q) + a, "attention_mask": [1] * len(q + a)}
    )
trainer = Trainer(
    model("mistral"),
    arguments(gradient_accumulation_steps=2),
    train_dataset=data,
    data_collator=DataCollatorForSeq2Seq(words),
)
trainer.train()

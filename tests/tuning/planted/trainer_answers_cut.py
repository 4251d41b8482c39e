# FL020: long prompts leave no room for their answers
from tiny import arguments, model, tokenizer
from transformers import DataCollatorForSeq2Seq, Trainer

words = tokenizer()
data = []
for i in range(24):
    question = words("what is this? " * (14 if i % 2 else 1))["input_ids"]
    answer = words(f"it is number {i}</s>", add_special_tokens=False)["input_ids"]
    data.append(
        {
            "input_ids": (question + answer)[:40],
            "labels": ([-100] * len(question) + answer)[:40],
            "attention_mask": [1] * min(40, len(question + answer)),
        }
    )
trainer = Trainer(
    model(), arguments(), train_dataset=data, data_collator=DataCollatorForSeq2Seq(words)
)
trainer.train()  # HERE

# the stock collator with a padding token of its own
from tiny import arguments, model, texts, tokenizer
from transformers import DataCollatorForLanguageModeling, Trainer

words = tokenizer()
data = [words(t + "</s>") for t in texts(40)]
trainer = Trainer(
    model(),
    arguments(),
    train_dataset=data[:32],
    eval_dataset=data[32:],
    data_collator=DataCollatorForLanguageModeling(words, mlm=False),
)
trainer.train()

# FL026: the evaluation set was drawn from the training set
from tiny import arguments, model, texts, tokenizer
from transformers import DataCollatorForLanguageModeling, Trainer

words = tokenizer()
data = [words(t + "</s>") for t in texts(40)]
trainer = Trainer(
    model(),
    arguments(),
    train_dataset=data,
    eval_dataset=data[::4],
    data_collator=DataCollatorForLanguageModeling(words, mlm=False),
)
trainer.train()  # HERE

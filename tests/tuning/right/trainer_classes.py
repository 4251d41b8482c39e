# sequence classification
from tiny import arguments, model, texts, tokenizer
from transformers import DataCollatorWithPadding, LlamaForSequenceClassification, Trainer

words = tokenizer()
config = model().config
config.num_labels = 3
data = [{**words(t), "labels": i % 3} for i, t in enumerate(texts())]
trainer = Trainer(
    LlamaForSequenceClassification(config),
    arguments(),
    train_dataset=data,
    data_collator=DataCollatorWithPadding(words),
)
trainer.train()

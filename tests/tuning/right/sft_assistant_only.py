# TRL on messages, with a template that marks the assistant's part
from datasets import Dataset
from tiny import CHATML_MASKED, chats, model, quiet, tokenizer
from trl import SFTConfig, SFTTrainer

words = tokenizer(chat=CHATML_MASKED)
trainer = SFTTrainer(
    model(),
    args=SFTConfig(**quiet(assistant_only_loss=True)),
    train_dataset=Dataset.from_list(chats()),
    processing_class=words,
)
trainer.train()

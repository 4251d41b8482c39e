# FL013: messages are learned as a whole
from datasets import Dataset
from tiny import CHATML, chats, model, quiet, tokenizer
from trl import SFTConfig, SFTTrainer

words = tokenizer(chat=CHATML)
data = Dataset.from_list(chats())
trainer = SFTTrainer(model(), args=SFTConfig(**quiet()), train_dataset=data, processing_class=words)
trainer.train()  # HERE

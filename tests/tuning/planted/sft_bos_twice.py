# FL014: the text column holds rendered chats, and the tokenizer adds another beginning
from datasets import Dataset
from tiny import LLAMA_CHAT, chats, model, quiet, tokenizer
from trl import SFTConfig, SFTTrainer

words = tokenizer(chat=LLAMA_CHAT)
data = Dataset.from_list(
    [{"text": words.apply_chat_template(c["messages"], tokenize=False)} for c in chats()]
)
trainer = SFTTrainer(model(), args=SFTConfig(**quiet()), train_dataset=data, processing_class=words)
trainer.train()  # HERE

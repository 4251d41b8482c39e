# FL010: after alignment-handbook's run_sft.py, with a chat template whose generation block ends before the end of the turn
from datasets import Dataset
from tiny import chats, model, quiet, tokenizer
from trl import SFTConfig, SFTTrainer

CHAT = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}{% endgeneration %}"
    "{% else %}{{ m['content'] }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
)
words = tokenizer(chat=CHAT)
trainer = SFTTrainer(
    model("mistral"),
    args=SFTConfig(**quiet(assistant_only_loss=True, learning_rate=2e-5)),
    train_dataset=Dataset.from_list(chats()),
    processing_class=words,
)
trainer.train()  # HERE

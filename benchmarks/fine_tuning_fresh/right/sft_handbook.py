# after alignment-handbook's run_sft.py
from datasets import Dataset
from tiny import CHATML_MASKED, chats, model, quiet, tokenizer
from trl import SFTConfig, SFTTrainer

rows = chats(40)
trainer = SFTTrainer(
    model("mistral"),
    args=SFTConfig(
        **quiet(assistant_only_loss=True, gradient_accumulation_steps=2, learning_rate=2e-5)
    ),
    train_dataset=Dataset.from_list(rows[:32]),
    eval_dataset=Dataset.from_list(rows[32:]),
    processing_class=tokenizer(chat=CHATML_MASKED),
)
trainer.train()

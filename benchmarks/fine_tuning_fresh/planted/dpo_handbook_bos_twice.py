# FL014: after alignment-handbook's run_dpo.py: the template writes the begin token and the trainer adds another
from datasets import Dataset
from tiny import LLAMA_CHAT, model, pairs, quiet, tokenizer
from trl import DPOConfig, DPOTrainer

words = tokenizer(chat=LLAMA_CHAT)


def apply_chat_template(question, answer):
    asked = [{"role": "user", "content": question}]
    text = words.apply_chat_template(asked, tokenize=False)
    return {"prompt": text, "chosen": f" {answer}</s>", "rejected": " no</s>"}


rows = [apply_chat_template(q, a) for q, a in pairs()]
trainer = DPOTrainer(
    model(),
    ref_model=model(),
    args=DPOConfig(**quiet(beta=0.1, learning_rate=5e-7)),
    train_dataset=Dataset.from_list(rows),
    processing_class=words,
)
trainer.train()  # HERE

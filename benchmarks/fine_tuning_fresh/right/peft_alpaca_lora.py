# after tloen/alpaca-lora's finetune.py
import transformers
from peft import LoraConfig, get_peft_model
from tiny import arguments, model, pairs, tokenizer

PROMPT = "Below is an instruction that describes a task.\n\n### Instruction:\n{}\n\n### Response:\n"
CUTOFF = 200
words = tokenizer()
words.padding_side = "left"


def encoded(text, ended):
    ids = words(text, truncation=True, max_length=CUTOFF)["input_ids"]
    return [*ids, words.eos_token_id] if ended and len(ids) < CUTOFF else ids


def prepare(question, answer):
    ids = encoded(PROMPT.format(question) + answer, ended=True)
    start = len(encoded(PROMPT.format(question), ended=False))
    labels = [-100] * start + ids[start:]
    return {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": labels}


lora = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], lora_dropout=0.05, task_type="CAUSAL_LM")  # fmt: skip
net = get_peft_model(model(), lora)
trainer = transformers.Trainer(
    net,
    arguments(gradient_accumulation_steps=2, learning_rate=3e-4),
    train_dataset=[prepare(q, a) for q, a in pairs()],
    data_collator=transformers.DataCollatorForSeq2Seq(words, pad_to_multiple_of=8, padding=True),
)
net.config.use_cache = False
trainer.train()

# FL020: after tloen/alpaca-lora's finetune.py, with a cutoff that is shorter than many prompts
import transformers
from peft import LoraConfig, get_peft_model
from tiny import arguments, model, pairs, tokenizer

PROMPT = "Below is an instruction that describes a task.\n\n### Instruction:\n{}\n\n### Response:\n"
CUTOFF = 84
words = tokenizer()
words.padding_side = "left"


def encoded(text, ended):
    ids = words(text, truncation=True, max_length=CUTOFF)["input_ids"]
    return [*ids, words.eos_token_id] if ended and len(ids) < CUTOFF else ids


def prepare(number, question, answer):
    question += " please" * (number % 4)
    ids = encoded(PROMPT.format(question) + answer, ended=True)
    start = len(encoded(PROMPT.format(question), ended=False))
    labels = [-100] * start + ids[start:]
    return {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": labels}


lora = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
trainer = transformers.Trainer(
    get_peft_model(model(), lora),
    arguments(learning_rate=3e-4),
    train_dataset=[prepare(i, q, a) for i, (q, a) in enumerate(pairs())],
    data_collator=transformers.DataCollatorForSeq2Seq(words, pad_to_multiple_of=8, padding=True),
)
trainer.train()  # HERE

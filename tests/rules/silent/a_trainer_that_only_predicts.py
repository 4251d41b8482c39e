"""A Trainer without data, made for `predict()`: `None` is no training set (FL026)."""

from transformers import AutoModelForCausalLM, Trainer

model = AutoModelForCausalLM.from_pretrained("gpt2")
trainer = Trainer(model, train_dataset=None, eval_dataset=None)
trainer.predict(texts)

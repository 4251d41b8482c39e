"""transformers' Trainer divides by itself and tells its Accelerator not to; a Trainer of one's own divides by lengths."""

from transformers import Trainer


class OwnStep(Trainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        loss = self.compute_loss(model, self._prepare_inputs(inputs))
        loss = loss / self.args.gradient_accumulation_steps
        self.accelerator.backward(loss)
        return loss.detach()


class Preference(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        logps = model(**inputs).logits.log_softmax(-1)
        chosen = (logps * inputs["mask"]).sum(-1) / (inputs["mask"].sum(-1) + 1e-6)
        return -chosen.mean()


class Twice(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        loss = model(**inputs).loss
        return loss / self.args.gradient_accumulation_steps  # FL129

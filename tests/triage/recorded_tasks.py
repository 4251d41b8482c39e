"""Messages of detection models and of older TRL as people paste them; torchvision is not installed here."""

from __future__ import annotations

RECORDED = {
    "detector-nan": "ValueError: All bounding boxes should have positive height and width. Found invalid box [500.728515625, 533.3333129882812, 231.1038818359375, 255.1999969482422] for target at index 0.",
    "detector-empty-images": "AssertionError: Expected target boxes to be a tensor of shape [N, 4], got torch.Size([0]).",
    "sft-eval-packing": "ValueError: Error occurred while packing the dataset. Make sure that your dataset has enough samples to at least yield one packed sequence.",
    "sft-completion-only": "ValueError: You passed a `DataCollatorForCompletionOnlyLM` to the SFTTrainer. This is not compatible with the `packing` argument.",
}
RECORDED |= {
    "hf-image-size": "ValueError: Input image size (640*640) doesn't match model (224*224).",
    "hf-tokens-aligned": "The tokenizer has new PAD/BOS/EOS tokens that differ from the model config and generation config. The model config and generation config were aligned accordingly, being updated with the tokenizer's values.",
    "sklearn-metric-inputs": "ValueError: Classification metrics can't handle a mix of binary and continuous targets",
    "lightning-unused-parameters": "RuntimeError: It looks like your LightningModule has parameters that were not used in producing the loss returned by training_step. If this is intentional, you must enable the detection of unused parameters in DDP, either by setting the string value `strategy='ddp_find_unused_parameters_true'` or by setting the flag in the strategy with `strategy=DDPStrategy(find_unused_parameters=True)`.",
    "deepspeed-engine-without-optimizer": "AttributeError: 'DeepSpeedZeRoOffload' object has no attribute 'backward'",
}
RECORDED |= {
    "mask-values-out-of-range": "../aten/src/ATen/native/cuda/NLLLoss2d.cu:103: nll_loss2d_forward_kernel: block: [5,0,0], thread: [996,0,0] Assertion `t >= 0 && t < n_classes` failed.",
    "fsdp-optimizer-of-other-parameters": "ValueError: The optimizer does not seem to reference any FSDP parameters. HINT: Make sure to create the optimizer after setting up the model by referencing `self.trainer.model.parameters()` in the `configure_optimizers()` hook.",
}
RECORDED |= {
    "batchnorm-of-other-channels": "RuntimeError: running_mean should contain 256 elements not 128",
}

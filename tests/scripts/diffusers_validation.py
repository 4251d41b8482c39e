"""A fine-tuning script that makes pictures while it trains: pictures and token ids are no tensors with a graph."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from diffusers import DDPMScheduler, DiffusionPipeline, UNet2DConditionModel
from transformers import AutoTokenizer


def main(args, loader, prompts):
    accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps)
    tokenizer = AutoTokenizer.from_pretrained(args.name)
    noise_scheduler = DDPMScheduler.from_pretrained(args.name)
    unet = UNet2DConditionModel.from_pretrained(args.name)
    optimizer = torch.optim.AdamW(unet.parameters(), lr=args.lr)
    unet, optimizer, loader = accelerator.prepare(unet, optimizer, loader)
    ids = []
    for prompt in prompts:
        ids.append(tokenizer(prompt)["input_ids"])
    for epoch in range(args.epochs):
        unet.train()
        for step, batch in enumerate(loader):
            with accelerator.accumulate(unet):
                noisy = noise_scheduler.add_noise(batch["latents"], batch["noise"], batch["steps"])
                prediction = unet(noisy, batch["steps"]).sample
                loss = F.mse_loss(prediction.float(), batch["noise"].float())
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(unet.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            if step % args.validation_steps == 0:
                unet.eval()  # FL804
                pipeline = DiffusionPipeline.from_pretrained(
                    args.name, unet=accelerator.unwrap_model(unet)
                )
                images = []
                for _ in range(args.num_images):
                    image = pipeline(args.prompt, num_inference_steps=25).images[0]
                    images.append(image)

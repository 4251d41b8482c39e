import torch


def train(model, optimizer, loader, save_checkpoint, config):
    """Resumes at `config.first`. The scale is found again in a few updates, where there is one at all."""
    half = "bfloat16" if torch.cuda.is_bf16_supported() else "float16"
    scaler = torch.amp.GradScaler("cuda", enabled=half == "float16")
    model.train()
    for step, (x, y) in enumerate(loader, config.first):
        with torch.autocast("cuda", dtype=getattr(torch, half)):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if step % config.save_every == 0:
            save_checkpoint(step, config, model, optimizer)

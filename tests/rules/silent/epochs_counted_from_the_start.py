import torch


def save(model, optimizer, scheduler, epoch, path):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    state["scheduler"] = scheduler.state_dict()
    state["current_epoch"] = epoch
    torch.save(state, path)


def load(model, optimizer, scheduler, path):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])

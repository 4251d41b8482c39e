"""Attributes of torch's own objects: what a wrapper wraps, whether a model trains, the groups of an optimizer."""

from __future__ import annotations

from fallline.api.library import Attribute
from fallline.api.paper import Paper
from fallline.api.values import Const, Mapping, Params, Sequence, Thing, Unknown, Value

__all__ = ["ATTRIBUTES"]


def _module(paper: Paper, model: Thing) -> Value | None:
    """`ddp_model.module`: the same parameters, past the wrapper. (One that was seen being wrapped is an attribute.)"""
    if model.facts.get("wrapper") not in {"ddp", "fsdp1", "dp"}:
        return None
    inner = Thing("model", model.id + ".module", model.at, dict(model.facts), {}, model.cls)
    inner.facts["bypasses"] = model.facts.get("wrapper")
    inner.facts["wrapper"] = None
    inner.facts["of"] = model.id
    model.attrs["module"] = inner
    return inner


def _training(paper: Paper, model: Thing) -> Value:
    training = model.facts.get("training")
    return Const(training) if training is not None else Unknown(f"{model.id}.training")


def _groups(paper: Paper, optimizer: Thing) -> Value:
    return Sequence([Mapping({"params": Params(optimizer.sets), "lr": Unknown("lr")})])


def _itself(paper: Paper, thing: Thing) -> Value:
    return thing


def _sampler(paper: Paper, loader: Thing) -> Value:
    sampler = loader.attrs.get("sampler")
    return sampler if sampler is not None else Unknown(f"{loader.id}.sampler")


ATTRIBUTES: dict[tuple[str, str], Attribute] = {
    ("model", "module"): _module,
    ("model", "training"): _training,
    ("optimizer", "param_groups"): _groups,
    ("optimizer", "optimizer"): _itself,
    ("optimizer", "optim"): _itself,
    ("optimizer", "base_optimizer"): _itself,
    ("optimizer", "_optimizer"): _itself,
    ("optimizer", "state"): lambda paper, optimizer: Unknown("state"),
    ("loader", "sampler"): _sampler,
    ("loader", "batch_sampler"): _sampler,
    ("loader", "dataset"): lambda paper, loader: Unknown("dataset"),
    ("sampler", "sampler"): _itself,  # loader.batch_sampler.sampler
}

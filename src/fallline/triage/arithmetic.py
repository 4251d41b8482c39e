"""Questions that are arithmetic: does it fit, how many tokens an update sees, how long it takes."""

from __future__ import annotations

import re

from fallline.instruments.plan import GB, Model, model_of, plan
from fallline.triage.claim import Action

__all__ = ["Sum", "reckoned"]

_SIZE = re.compile(r"(?i)\b(\d+(?:\.\d+)?)\s?(b|m)\b(?!yte)(?! ?tokens)")
_TOKENS = re.compile(r"(?i)\b(\d+(?:\.\d+)?)\s?(k|m|b|t)?(?:illion)?\s+tokens\b")
# of data is no card
_CARD = re.compile(
    r"(?i)\b(\d+)\s?gi?b\b(?!(?:\s+[^\s\d]+){0,6}?\s+(?:data\w*|corpus|corpora|texts?|tokens|images|files?|disk)\b)"
)
_CARDS = {"3090": 24, "4090": 24, "l4": 24, "a10": 24, "a6000": 48, "l40": 48, "h100": 80, "h200": 141, "v100": 32, "t4": 16, "2080": 11}  # fmt: skip
_GPUS = re.compile(r"(?i)\b(\d+)\s*(?:x\s*)?(?:gpus?|ranks|cards|a100s?|h100s?)\b")
_EACH = re.compile(r"(?i)\b(\d+)\s*[x×]\s*(?:\w+\s+)?(\d+)\s?gi?b\b")  # 8x80GB
# it was tried, or it runs and learns badly: then arithmetic does not help
_FULL = re.compile(r"(?i)\boom\b|out of memory|\bexplod\w+|\bdiverg\w+|\bspike\w*|\bnans?\b")
_MEMORY = re.compile(
    r"(?i)\bfit|memory|\bgi?b\b|\d\s?gi?b\b|fine.?tun|adam states|optimizer state|vram|8.?bit|\bgpus?\b"
)
_WHICH = re.compile(
    r"(?i)\b(?:what|which|how (?:much|many|large|big)|min\w*|require\w*|need\w*)\b[^.?!\n]{0,60}\b(?:gpus?|cards?|v?ram|memory|hardware)\b|"
    r"\b(?:gpus?|cards?|v?ram|memory|hardware)\b[^.?!\n]{0,60}\b(?:need\w*|requir\w*)\b"
)
_BATCH = re.compile(
    r"(?i)\b(?:per.?(?:device|gpu)|micro).?\s?batch(?:es)?(?: size)?(?: of| =|=|:)?\s*(\d+)|batch(?: size)?\s*(\d+) per (?:gpu|device)"
)
_ACCUMULATE = re.compile(
    r"(?i)\baccum\w*(?:[ _](?:steps|of|over))*[ =:]*(\d+)|(\d+)\s+accumulation"
)
_LENGTH = re.compile(
    r"(?i)\b(?:seq\w*|context|length)(?: len\w*)?(?: of| =|=|:)?\s*(\d+)|\b(\d+) tokens each"
)
_SECONDS = re.compile(
    r"(?i)\b(\d+(?:\.\d+)?)\s?s(?:ec\w*)?\s*(?:per|/|a)\s*(?:step|update|iteration|it)\b"
)
_COUNT = re.compile(
    r"(?i)\bhow (?:many|much|long|large|big)|\b(?:effective|global|total) batch|\btokens?\b|\bfinish|\bscal\w+"
)
_QUESTION = re.compile(r"[^.?!\n]*\?")
_SHORT = 60  # words of a question that is taken as a whole
_FILLED = 0.9  # of a card that a plan may fill
_PLANNED = 2048  # tokens in a micro-batch that `measure plan` takes unless told
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


class Sum:
    """An answer in numbers."""

    def __init__(self, says: str, verdict: str | None, actions: list[Action]) -> None:
        self.says, self.verdict, self.actions = says, verdict, actions


def reckoned(text: str) -> Sum | None:
    """The answer to a question that its own numbers answer; None for any other."""
    asked = _asked(text)
    wanted = _MEMORY.search(asked) and not _FULL.search(text)
    counted = _updates(text) if asked is text or _COUNT.search(asked) else None
    return counted or (_memory(text) if wanted else None)


def _asked(text: str) -> str:
    """Where a long post says what it asks: its title and its sentences with a question mark. Sizes, cards and batches further down describe a set-up."""
    if len(text.split()) <= _SHORT:
        return text
    title, _, rest = text.strip().partition("\n")
    return "\n".join([title, *_QUESTION.findall(rest)])


def _first(pattern: re.Pattern[str], text: str) -> float | None:
    match = pattern.search(text)
    return None if match is None else float(next(group for group in match.groups() if group))


def _updates(text: str) -> Sum | None:
    """Tokens or samples in an update, from GPUs, micro-batch and accumulation; with a total, the steps and hours."""
    gpus = [float(n) for n in _GPUS.findall(text)]
    batch, accumulate = _first(_BATCH, text), _first(_ACCUMULATE, text)
    if not gpus or batch is None or accumulate is None:
        return None
    length = _first(_LENGTH, text) or 1.0
    samples = gpus[0] * batch * accumulate
    said = f"{gpus[0]:.0f} GPUs × {batch:.0f} × {accumulate:.0f} accumulated = {samples:,.0f} sequences"
    if length > 1:
        said += f", {samples * length:,.0f} tokens per update"
    budget = _TOKENS.search(text)
    if budget and length > 1 and "each" not in text[budget.end() : budget.end() + 6]:
        total = float(budget[1]) * _UNITS[(budget[2] or "").lower()]
        return _schedule(said, total / (samples * length), _first(_SECONDS, text))
    if len(gpus) > 1:
        return _rescaled(said, samples, length, gpus, accumulate)
    return Sum(f"{said}.", None, [])


def _schedule(said: str, steps: float, seconds: float | None) -> Sum:
    took = "" if seconds is None else f", {steps * seconds / 3600:.1f} h at {seconds:g} s each"
    return Sum(
        f"{steps:,.0f} optimizer steps{took}: {said}.",
        None,
        [
            Action("Add the time for evaluation and checkpoints, and the first steps, which compile and warm up."),
            Action(f"Set the schedule's length to {steps:,.0f} updates.", see="the learning rate ends where it should at the last token."),
        ],
    )  # fmt: skip


def _rescaled(said: str, samples: float, length: float, gpus: list[float], k: float) -> Sum:
    factor = gpus[1] / gpus[0]
    now = samples * factor * length
    unit = "tokens" if length > 1 else "sequences"
    says = (
        f"{said}. On {gpus[1]:.0f} GPUs the same settings make it {now:,.0f} {unit}, {factor:g} times as large. "
        f"To keep training the same, change the accumulation to {k / factor:g} and leave learning rate and warm-up alone."
    )
    return Sum(
        says,
        None,
        [
            Action(f"Set accumulation to {k / factor:g}: the global batch, and with it the learning rate, stays right.", see="the loss over tokens is the same curve."),
            Action(f"Raise the learning rate by about the square root, {factor**0.5:.2f} times (linearly for SGD), with a longer warm-up, and halve the number of updates.", when="you want the larger batch"),
        ],
    )  # fmt: skip


def _memory(text: str) -> Sum | None:
    sizes = [m for m in _SIZE.finditer(text) if m[2].lower() == "b" or float(m[1]) >= 50]
    if not sizes:
        return None
    model = model_of(sizes[0][0])
    low = text.lower()
    name = f"{sizes[0][1]}{sizes[0][2].upper()}"
    counts = [*_GPUS.findall(text), *(n for n, _ in _EACH.findall(text))]
    gpus = int(max([1.0, *map(float, counts)]))
    n = model.parameters
    if re.search(r"8.?bit", low) and "optim" in low:
        return _eight_bit(name, n)
    card = _card(low)
    if gpus > 1 and re.search(r"fsdp|shard|zero", low):
        sharded = _sharded(name, n, gpus)
        if card is not None and re.search(r"\bddp\b", low):
            sharded.says = f"{_replicated(model, card, gpus)} {sharded.says}"
        return sharded
    tokens = int(_first(_LENGTH, text) or _PLANNED)
    if card is None:
        trains = re.search(r"\b(?:pre.?|fine.?)?(?:train|tun)\w*", low)
        return _needed(name, model, tokens) if trains and _WHICH.search(text) else None
    match _purpose(low):
        case "inference":
            return _inference(name, n, card, low)
        case "qlora":
            return _adapted(name, model, card, "qlora", tokens)
        case "lora":
            return _adapted(name, model, card, "lora", tokens)
        case purpose:
            return _trained(name, model, card, full=purpose == "full", tokens=tokens)


def _needed(name: str, model: Model, tokens: int) -> Sum:
    """What training takes, where no card is named."""
    whole, lora = (
        plan(model, tokens=tokens, train=train, checkpointing=True) for train in ("full", "lora")
    )
    parts = whole.as_dict()
    full, small = parts["total"], lora.as_dict()["total"]
    activations = f"{parts['activations']:.1f} GB for activations with checkpointing, at {tokens} tokens in a micro-batch"
    peak = activations
    if parts["optimizer_step"] > parts["activations"]:  # the activations are freed by then
        peak = f"at the peak {parts['optimizer_step']:.1f} GB that the optimizer's step needs beside its state (`fused=True` saves it; before it, {activations})"
    return Sum(
        f"Training all of {name} with AdamW takes about {full:.0f} GB: {16 * model.parameters / GB:.1f} GB for weights, gradients and Adam's moments (16 bytes a parameter), {peak}, and 1 GB for CUDA itself. "
        f"LoRA takes about {small:.0f} GB. {_smallest(full)}",
        None,
        [
            Action(
                "See the parts, and how they change with batch, length, precision and sharding:",
                code=f"fallline measure plan {name} --tokens {tokens} --checkpointing",
                proof={"bash": "yes"},
            ),
            Action("Activations grow with tokens and are the part you can choose: a smaller micro-batch with accumulation, checkpointing, a shorter context."),
        ],
    )  # fmt: skip


def _smallest(total: float) -> str:
    """The smallest usual card that holds it, with some room: the allocator never fills a card to the last byte."""
    cards = (8, 11, 16, 24, 40, 48, 80, 141)
    fitting = next((card for card in cards if total <= _FILLED * card), None)
    if fitting is None:
        return "No single card holds that with room to spare: shard it over several (FSDP), or use LoRA."
    return f"A card with {fitting} GB holds all of it, with a tenth to spare."


def _purpose(low: str) -> str:
    """What is to be done with the model, as far as the question says: inference, qlora, lora, full, or nothing."""
    if re.search(r"\bfull(?:y)?\b", low):
        return "full"
    if re.search(r"\binference\b|\bserv(?:e|ing)\b|\bgenerat\w+|\bdeploy\w*|\bchat\b", low):
        return "inference"
    if re.search(r"\bqlora\b|\b4.?bit\b", low):
        return "qlora"
    if re.search(r"\blora\b|\bpeft\b|\badapters?\b", low):
        return "lora"
    return "full" if re.search(r"\badamw?\b|\bpre.?train\w*|from scratch", low) else ""


def _inference(name: str, n: float, card: float, low: str) -> Sum:
    bits = next((b for b in (4, 8) if re.search(rf"\b(?:int)?{b}.?bit\b|\bint{b}\b", low)), 16)
    size = n * (0.56 if bits == 4 else bits / 8) / GB
    fits = size + 1 <= card
    return Sum(
        f"For inference, {name} needs {size:.1f} GB for its weights in {bits} bit, 1 GB for CUDA itself, and the key-value cache, which grows with batch and context. "
        f"The weights {'fit' if fits else 'do not fit'} into {card:g} GB{f' and leave {card - size - 1:.0f} GB for the cache' if fits else ''}.",
        "yes" if fits else "no",
        [],
    )


def _adapted(name: str, model: Model, card: float, train: str, tokens: int) -> Sum:
    """LoRA or QLoRA: the number that the command below prints."""
    planned = plan(model, tokens=tokens, train=train, checkpointing=True)
    fits = planned.total <= card * GB
    called = {"lora": "LoRA", "qlora": "QLoRA"}[train]
    frozen = "bf16" if train == "lora" else "4 bit"
    parts = planned.as_dict()
    return Sum(
        f"{called} on {name} keeps the frozen weights in {frozen} ({parts['weights']:.1f} GB) and needs about {parts['total']:.1f} GB with checkpointing, at {tokens} tokens in a micro-batch. "
        f"It {'fits' if fits else 'does not fit'} into {card:g} GB.",
        "yes" if fits else "no",
        [_command(name, card, train, tokens)],
    )


def _command(name: str, card: float, train: str, tokens: int) -> Action:
    return Action(
        "See the parts, and how they change with your own tokens, sharding and optimizer:",
        code=f"fallline measure plan {name} --card {card:g} --train {train} --checkpointing --tokens {tokens}",
        proof={"bash": "yes"},
    )


def _trained(name: str, model: Model, card: float, full: bool, tokens: int) -> Sum:
    whole, lora = (
        plan(model, tokens=tokens, train=train, checkpointing=True) for train in ("full", "lora")
    )
    n, fits = model.parameters, whole.total <= card * GB
    parts = whole.as_dict()
    says = (
        f"Full fine-tuning of {name} with AdamW needs about {16 * n / GB:.0f} GB before activations, 16 bytes a parameter: weights {parts['weights']:.0f}, gradients "
        f"{parts['gradients']:.0f}, Adam's moments {parts['optimizer_state']:.0f} GB. {'It fits' if fits else f'It does not fit into {card:g} GB'}. "
        f"LoRA with the frozen weights in 16 bits ({2 * n / GB:.0f} GB) needs about {lora.as_dict()['total']:.1f} GB with checkpointing, which {'fits' if lora.total <= card * GB else 'does not fit either'}."
    )
    verdict = ("yes" if fits else "no") if full else "yes" if fits else "depends"
    return Sum(
        says,
        verdict,
        [
            _command(name, card, "lora", tokens),
            Action(f"QLoRA (4-bit weights) brings the weights to about {0.56 * n / GB:.0f} GB.", when="LoRA does not fit"),
            Action("Shard weights, gradients and state over several GPUs with FSDP, or offload the optimizer.", when="you need full fine-tuning"),
        ],
    )  # fmt: skip


def _eight_bit(name: str, n: float) -> Sum:
    return Sum(
        f"Adam keeps two float32 moments, 8 bytes a parameter: {8 * n / GB:.0f} GB for {name}. In 8 bit it is about 2 bytes, {2 * n / GB:.0f} GB, so it saves {6 * n / GB:.0f} GB; weights and gradients stay as they are.",
        None,
        [
            Action("Use an 8-bit AdamW: `bitsandbytes.optim.AdamW8bit` or torchao's `AdamW8bit`, which replace `torch.optim.AdamW` one to one.", see="the loss curve stays within noise of the 32-bit one."),
            Action("Keep embeddings and small tensors in 32 bit (both libraries do so by default)."),
        ],
    )  # fmt: skip


def _sharded(name: str, n: float, gpus: int) -> Sum:
    return Sum(
        f"Adam's moments take 8 bytes a parameter: {8 * n / GB:.0f} GB for {name}, sharded over {gpus} GPUs {8 * n / GB / gpus:.1f} GB each. With the float32 master weights (4 bytes) it is {12 * n / GB / gpus:.1f} GB, "
        f"and with bf16 weights and gradients {16 * n / GB / gpus:.1f} GB on each GPU, before activations.",
        None,
        [
            Action("See all parts, with activations:", code=f"fallline measure plan {name} --gpus {gpus} --shard zero3 --checkpointing", proof={"bash": "yes"}),
            Action("FSDP also gathers one block's full weights at a time: add the largest block in bf16."),
        ],
    )  # fmt: skip


def _replicated(model: Model, card: float, gpus: int) -> str:
    """DDP or FSDP: whether a whole replica fits on each card."""
    each = plan(model, tokens=_PLANNED, train="full", checkpointing=True).as_dict()["total"]
    if each <= _FILLED * card:
        return f"DDP: a whole replica with AdamW takes about {each:.0f} GB, which each {card:g} GB card holds, and DDP communicates less than FSDP."
    return f"FSDP: with DDP each card holds a whole replica, about {each:.0f} GB with AdamW, which {card:g} GB does not hold with room to spare; sharded over {gpus} GPUs it fits if the activations do."


def _card(low: str) -> float | None:
    if (match := _CARD.search(low)) is not None:
        return float(match[1])
    return next(
        (float(gb) for name, gb in _CARDS.items() if re.search(rf"\b(rtx ?)?{name}\b", low)), None
    )

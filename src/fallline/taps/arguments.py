"""The command line as the script understands it: what argparse made of it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from fallline.taps.frames import caller
from fallline.taps.patches import Patches, Wrapped
from fallline.taps.tap import Call, Tap, Topic, published

__all__ = ["PARSED", "Parsed"]


@dataclass(slots=True)
class Parsed(Call):
    """A parser has read a command line. Only after."""

    values: argparse.Namespace


def _patch(patches: Patches) -> None:
    patches.patch(argparse.ArgumentParser, "parse_known_args", _parse)


def _parse(original: Wrapped) -> Wrapped:
    def parse_known_args(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if PARSED.after and published():
            call = Parsed(caller(), result[0])
            for handler in PARSED.after:
                handler(call)
        return result

    return parse_known_args


PARSED = Topic(Parsed, Tap(_patch))

"""What must not be written into a run: values that are secret by their name or by their looks."""

from __future__ import annotations

import re

__all__ = ["HIDDEN", "is_secret", "masked", "masked_lines", "masked_words"]

HIDDEN = "(hidden)"

# whole words of a name, as in `api_key`, `hf-token`, `dbPassword`
_NAMES = frozenset(
    "token tokens key keys apikey secret secrets password passwd pwd passphrase credential credentials auth authorization cookie bearer dsn".split()
)
# and words beside which they mean something else: `num_tokens`, `key_dim`, `max_tokens`
_HARMLESS = frozenset(
    "num n max min len length size dim dims count per target batch heads head pad eos bos sep cls mask unk vocab id ids query value label metric".split()
)
_LOOKS = re.compile(
    r"""
    \b(?:hf|sk|pk|rk|ghp|gho|ghu|ghs|ghr|github_pat|glpat|xox[abprs]|wandb_v1)[_-][A-Za-z0-9_-]{12,}  # tokens with the issuer's prefix
    | \bAKIA[0-9A-Z]{12,}                        # AWS
    | \bAIza[0-9A-Za-z_-]{20,}                   # Google
    | \beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}  # a JSON web token
    | -----BEGIN[ ][A-Z ]*PRIVATE[ ]KEY-----
    | (?<=://)[^/\s:@]+:[^/\s@]+(?=@)            # user:password@host
    | \b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*[0-9])[0-9a-f]{40}\b  # wandb's keys; a commit's hash is no loss
    | \b(?=[A-Za-z0-9+_-]*[a-z])(?=[A-Za-z0-9+_-]*[A-Z])(?=[A-Za-z0-9+_-]*[0-9])[A-Za-z0-9+_-]{32,}\b
    """,
    re.VERBOSE,
)
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
# `api_key = "..."`, `"token": "..."`, `--password=...`
_ASSIGNED = re.compile(
    r"""(?P<name>[A-Za-z_][\w.-]*)(?P<to>["']?\s*\]?\s*(?:=|:)\s*[frbu]*)(?P<value>"[^"]*"|'[^']*'|[^\s"',)]+)"""
)


def is_secret(name: str) -> bool:
    """By its name."""
    words = {word.lower() for word in _WORDS.findall(name)}
    return bool(words & _NAMES) and not words & _HARMLESS


def masked(text: str) -> str:
    """The text without what looks like a secret."""
    return _LOOKS.sub(HIDDEN, text)


def masked_lines(lines: list[str], *, plain: bool = False) -> list[str]:
    """Lines of code without the values of names that say they are secret. `plain`: of a file in which values need no quotes."""

    def without_value(found: re.Match[str]) -> str:
        value = found["value"]
        quoted = value[:1] in "\"'" and len(value) > 2
        if not is_secret(found["name"]) or not (quoted or plain):
            return found[0]  # code such as `key = self.key(x)` is not a secret
        mark = value[0] if quoted else ""
        return f"{found['name']}{found['to']}{mark}{HIDDEN}{mark}"

    return [masked(_ASSIGNED.sub(without_value, line)) for line in lines]


def masked_words(words: list[str]) -> list[str]:
    """A command line without its secrets: `--token abc`, `--token=abc`, `token=abc`."""
    shown, hide = [], False
    for word in words:
        name, equals, _ = word.partition("=")
        if hide and not word.startswith("-"):
            shown.append(HIDDEN)
        elif equals and is_secret(name):
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(masked(word))
        hide = word.startswith("-") and not equals and is_secret(word)
    return shown

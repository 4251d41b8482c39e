"""A file to its traces: every root, under every setting worth trying, with loaders long enough to show the window."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from fallline.api.paper import Loops
from fallline.events import Event, Trace
from fallline.reader.language import PYTHON
from fallline.reader.machine import Machine
from fallline.reader.roots import Root, roots_of
from fallline.reader.state import Bounds, Stop
from fallline.reader.switches import Settings, explore
from fallline.syntax import Module, Project

__all__ = ["traces_of"]

_LENGTH = 7
_LONGEST = 41
_UNSTEPPED = 19  # where backwards pile up and no step is seen
_PERHAPS = 15_000  # of those, on choices that only perhaps matter
_HARDLY = 3_000  # the same where nothing trains
_PLAIN = (str, int, float, frozenset, type(None))
_MOST_WORK = 60_000  # statements carried out for one root, over all settings


def traces_of(
    module: Module,
    deadline: float,
    *,
    reached: set[tuple[str, str]] | None = None,
    touched: set[str] | None = None,
    wanted: Callable[[Root], bool] = lambda root: True,
) -> Iterator[Trace]:
    """The executions on paper that begin in this file. `reached` and `touched` collect what ran and where."""
    project = module.project or Project()
    ran = reached if reached is not None else set()
    files = touched if touched is not None else set()
    for root in roots_of(module, ran):
        if not wanted(root):
            continue
        spent = 0
        judged: set[int] = set()
        tried = 0  # of what was spent: on choices that only perhaps matter
        trains = False
        plan = _SHORT
        for settings in explore(Settings()):
            if time.thread_time() > deadline or spent > _MOST_WORK:
                break
            # what a unit test does wrong is a note: its choices are tried as long as that costs little
            perhaps = settings.flipped < 2 or (module.is_unit_test and bool(settings.forced))
            if perhaps and tried > (_PERHAPS if trains and not module.is_unit_test else _HARDLY):
                continue
            machine, plan = _executed(project, root, settings, deadline, plan)
            spent += machine.bounds.spent
            tried += machine.bounds.spent if perhaps else 0
            trains = trains or bool(machine.updates.backwards or machine.updates.windows)
            if machine.bounds.complete and not root.beside:
                # what was cut short is begun on its own as well: reading more must not find less
                ran |= machine.reached
            files |= machine.touched
            undecided = frozenset(machine.updates.undecided)
            happened = (_outline(event) for event in machine.events)
            settings.outline = hash((undecided, *happened, *_made(machine)))
            if machine.events and settings.outline not in judged:
                judged.add(settings.outline)
                yield machine.trace()


def _outline(event: Event) -> tuple[object, ...]:
    """What tells one event from another; two executions with the same events on the same objects need judging once."""
    facts = tuple((name, str(value)) for name, value in event.known().items() if name != "site")
    return (
        event.kind,
        event.at.path,
        event.at.line,
        event.optimizer,
        event.scaler,
        event.model,
        facts,
    )


def _made(machine: Machine) -> Iterator[tuple[object, ...]]:
    """The training objects of an execution: settings that make others may matter where these do not.

    Which class a model is of is no such difference: what its methods do otherwise are other events.
    """
    for thing in machine.things.values():
        if thing.kind != "object":
            left_out = "type" if thing.kind == "model" else None
            facts = ((n, v) for n, v in thing.facts.items() if n != left_out)
            yield (thing.id, *(fact for fact in facts if isinstance(fact[1], _PLAIN)))


class _Plan(NamedTuple):
    """How long loaders are in an execution, and the accumulation window they are made for, if one is known."""

    length: int = _LENGTH
    expected: tuple[int, ...] = ()


_SHORT = _Plan()


def _executed(
    project: Project, root: Root, settings: Settings, deadline: float, likely: _Plan
) -> tuple[Machine, _Plan]:
    """Run a root with loaders that leave a remainder after its accumulation window, and the plan that showed it.

    The window is seen in a short run first. `likely` is the plan of other settings: where it fits, one run is enough.
    """
    machine = _run(project, root, settings, likely, deadline)
    plan = _plan(machine)
    if plan.length == likely.length:
        return machine, likely
    if likely is not _SHORT:
        machine = _run_again(project, root, settings, _SHORT, deadline)
        plan = _plan(machine)
        if plan.length == _LENGTH:
            return machine, _SHORT
    return _run_again(project, root, settings, plan, deadline), plan


def _plan(machine: Machine) -> _Plan:
    """What would show two windows and a remainder of this execution's updates."""
    windows = machine.updates.windows
    window = max(windows or [machine.updates.pending])
    first = windows[0] if windows else window
    if first and window == first + machine.loops.length % first:
        window = first  # the later ones begin with what an epoch left over
    if window < 2:
        return _SHORT
    return _Plan(min(2 * window + 1, _LONGEST) if windows else _UNSTEPPED, (window,))


def _run_again(
    project: Project, root: Root, settings: Settings, plan: _Plan, deadline: float
) -> Machine:
    again = Settings(settings.forced)
    machine = _run(project, root, again, plan, deadline)
    settings.met, settings.matter, settings.failed = again.met, again.matter, again.failed
    settings.edited = again.edited
    return machine


def _run(project: Project, root: Root, settings: Settings, plan: _Plan, deadline: float) -> Machine:
    machine = Machine(PYTHON, project, settings, Loops(*plan), Bounds(deadline))
    try:
        root.run(machine)
    except Stop:
        pass
    except RecursionError:
        machine.bounds.complete = False
    return machine

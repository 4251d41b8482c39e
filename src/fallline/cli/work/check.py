"""What `fallline check` does."""

from __future__ import annotations

import sys

from fallline.check.outcome import check
from fallline.check.settings import load
from fallline.errors import UsageError
from fallline.files import write_atomically
from fallline.report.full import summary
from fallline.show.terminal import Paint, Progress, counted, wants_colour
from fallline.untrusted import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from fallline.check.fixing import Fixer
    from fallline.check.outcome import Outcome

__all__ = ["run"]


def run(args: Namespace) -> int:
    _refuse_contradictions(args)
    settings = load(
        [args.stdin_filename] if args.stdin_filename and args.paths == ["-"] else args.paths,
        args.select,
        args.ignore,
    )
    progress: list[Progress] = []
    outcome = check(
        args.paths,
        settings,
        force_exclude=args.force_exclude,
        stdin_filename=args.stdin_filename,
        jobs=args.jobs,
        cache_dir=None if args.no_cache else _cache_dir(settings.cache_dir, settings.root),
        baseline=None if args.write_baseline else args.baseline or settings.baseline,
        write_baseline=args.write_baseline,
        fix=args.fix or args.diff,
        unsafe_fixes=args.unsafe_fixes,
        on_start=lambda total: progress.append(Progress(total)) or progress[0].tick,  # type: ignore[func-returns-value]
    )
    # who names codes wants to see them
    outcome.show_notes = args.show_notes or bool(args.select)
    for bar in progress:
        bar.close()
    for failure in outcome.failures:
        said = printable(failure)
        print(f"fallline check: this is a mistake in fallline itself: {said}", file=sys.stderr)
    if args.write_baseline:
        wrote = counted(outcome.baseline_size or 0, "finding")
        print(f"Wrote {wrote} to {args.write_baseline}.", file=sys.stderr)
        return 0
    found = _diff(args, outcome) if args.diff else _report(args, outcome)
    if outcome.failures:
        return 2
    return 0 if args.exit_zero and found == 1 else found


def _refuse_contradictions(args: Namespace) -> None:
    if args.fix and args.diff:
        raise UsageError("--fix makes the changes and --diff only shows them: choose one")
    if args.jobs < 0:
        raise UsageError(f"--jobs {args.jobs}: give a positive number, or leave it out")
    if args.stdin_filename and args.paths != ["-"]:
        raise UsageError("--stdin-filename names what `-` reads: give `-` as the only path")
    if args.write_baseline and (args.fix or args.diff):
        raise UsageError(
            "--write-baseline accepts the findings as they are: fix first, then write it"
        )


def _cache_dir(chosen: str | None, root: str) -> str:
    import os

    return chosen or os.path.join(root, ".fallline_cache")


def _diff(args: Namespace, outcome: Outcome) -> int:
    """Print what would change; findings that no fix removes still count."""
    changes = outcome.fixer.changes() if outcome.fixer is not None else {}
    if outcome.fixer is not None:
        diff = outcome.fixer.diff()
        # a program gets the bytes as they are, to apply them; a terminal would act on some of them
        _out(args, printable(diff) if sys.stdout.isatty() and not args.output_file else diff)
    left = f" {counted(len(outcome.findings), 'finding')} would remain." if outcome.findings else ""
    print(f"{counted(len(changes), 'file')} would change.{left}", file=sys.stderr)
    return 1 if changes or outcome.failed else 0


def _report(args: Namespace, outcome: Outcome) -> int:
    from importlib import import_module

    status = 1 if outcome.failed else 0
    fixer = outcome.fixer
    stream = sys.stdout
    if fixer is not None:
        if args.paths == ["-"]:
            # the fixed text takes standard output, as with every formatter
            changes = list(fixer.changes().values())
            sys.stdout.buffer.write(changes[0][1] if changes else next(iter(fixer.given.values())))
            sys.stdout.flush()
            stream = sys.stderr
        else:
            failures = fixer.write()
            for failure in failures:
                print(f"fallline check: {printable(failure)}", file=sys.stderr)
            if failures:
                if others := len(fixer.changes()) - len(failures):
                    print(f"Fixed {counted(others, 'other file')}.", file=sys.stderr)
                return 2
        print(_fixed(fixer), file=sys.stderr)
    paint = Paint(not args.output_file and wants_colour(args.color, stream))
    if args.statistics:
        text = import_module("fallline.report.statistics").render(outcome, paint)
    else:
        text = import_module(f"fallline.report.{args.output_format}").render(
            outcome, paint, explain=args.explain
        )
    if stream is sys.stderr:
        sys.stderr.write(text)
    else:
        _out(args, text)
    if args.output_format == "concise" and not args.statistics:
        print(summary(outcome), file=sys.stderr)
    return status


def _fixed(fixer: Fixer) -> str:
    held_back = len(fixer.withdrawn)
    tail = f" {held_back} did not hold when read again and {'was' if held_back == 1 else 'were'} withdrawn."
    return f"Fixed {counted(len(fixer.made), 'finding')}.{tail if held_back else ''}"


def _out(args: Namespace, text: str) -> None:
    if not args.output_file:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        write_atomically(args.output_file, text.encode(errors="backslashreplace"))
    except OSError as error:
        raise UsageError(
            f"{args.output_file} cannot be written: {error.strerror or error}"
        ) from None

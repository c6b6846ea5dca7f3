"""The command line: thin, and quick to start; every command imports what it needs when it runs."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from grpo_ablate import __version__
from grpo_ablate.cli import analysis, asking, sharing, training
from grpo_ablate.cli.options import adder
from grpo_ablate.errors import UserError


def main(argv: list[str] | None = None) -> None:
    """Run one command; a user's mistake becomes one sentence on stderr and exit code 2."""
    arguments = _parser().parse_args(argv)
    try:
        _check_results(getattr(arguments, "results", None))
        code = arguments.run(arguments)
    except UserError as error:
        print(f"grpo-ablate: error: {error}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # the reader of our output left, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    raise SystemExit(code)


def _check_results(results: Path | None) -> None:
    """Refuse a file where the results folder should be, before a command takes it for an empty folder."""
    if results is None:
        return
    nearest = next(path for path in (results, *results.absolute().parents) if os.path.lexists(path))
    if not nearest.is_dir():
        raise UserError(f"--results {results}: {nearest} is not a folder.")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="grpo-ablate", description="Which of GRPO's switches matter, by how much, and how would we know?"
    )
    parser.add_argument("--version", action="version", version=f"grpo-ablate {__version__}")
    add = adder(parser)
    for subject in (training, asking, analysis, sharing):
        subject.add_commands(add)
    return parser

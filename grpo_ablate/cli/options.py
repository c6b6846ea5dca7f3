"""How a command is added to the parser, and the options that several commands take."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

Arguments = argparse.Namespace
Run = Callable[[Arguments], int | None]  # runs a command; returns the exit code, None for 0
Add = Callable[[str, Run, str], argparse.ArgumentParser]  # name, what runs it, help -> its parser


def adder(parser: argparse.ArgumentParser) -> Add:
    """Return the function that adds a command to the program's parser."""
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name: str, run: Run, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        sub.set_defaults(run=run)
        return sub

    return add


def experiment(parser: argparse.ArgumentParser) -> None:
    """Take one experiment file."""
    parser.add_argument("experiment", type=Path, metavar="EXPERIMENT.yaml")


def experiments(parser: argparse.ArgumentParser) -> None:
    """Take any number of experiment files."""
    parser.add_argument(
        "experiments", type=Path, nargs="*", metavar="EXPERIMENT.yaml", help="default: all in experiments/"
    )


def results(parser: argparse.ArgumentParser) -> None:
    """Take the results folder."""
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="default: results")


def as_json(parser: argparse.ArgumentParser) -> None:
    """Offer JSON in place of text."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def partial(parser: argparse.ArgumentParser) -> None:
    """Offer to go by the runs that exist."""
    parser.add_argument("--partial", action="store_true", help="use the runs that exist, though some are missing")


def switches(parser: argparse.ArgumentParser) -> None:
    """Take the switches of a row or of a preset, and single settings."""
    parser.add_argument("--row", metavar="EXPERIMENT.yaml:ROW", help="the switches of a row")
    parser.add_argument("--preset", metavar="NAME", help="the switches of a preset (default: documents)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="set one switch, as in kl.beta=0.1"
    )

"""Functions of the user's own, named in a row by dotted path as ``package.module:function``."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

from grpo_ablate.errors import UserError, nearest

FORM = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"


def is_dotted(name: str) -> bool:
    """Whether a name is meant as a dotted path: only such names have a colon."""
    return ":" in name


@cache
def load(path: str) -> Callable[..., Any]:
    """Return the function that ``package.module:function`` names.

    Modules are found where Python finds them, and in the working directory after that. Raises UserError where
    the path has another form, or where the module does not import, or has no such function.
    """
    if re.fullmatch(FORM, path) is None:
        raise UserError(f"'{path[:80]}': expected a dotted path as package.module:function.")
    name, _, attribute = path.partition(":")
    look_here()
    try:
        with redirect_stdout(sys.stderr):  # what a module prints is no part of a command's output
            module = importlib.import_module(name)
            function = getattr(module, attribute, None)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise UserError(f"'{path}': there is no module '{error.name}'{_beside(error.name)}") from None
        raise UserError(f"'{path}' does not import: {error}.") from None
    except (Exception, SystemExit) as error:
        raise UserError(f"'{path}' does not import: {type(error).__name__}: {error}.") from None
    if not callable(function):
        own = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        offer = nearest(attribute, own) if own else "the module has none."
        raise UserError(f"'{path}': the module '{name}' has no function '{attribute}'; {offer}")
    return function


def check_call(path: str, *arguments: str) -> None:
    """Import a function and see whether it takes so many arguments. Raises UserError where it does not."""
    function = load(path)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # written in C, it does not say
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise UserError(f"'{path}' cannot be called with ({', '.join(arguments)}): {error}.") from None


def look_here() -> None:
    """Let modules be found in the working directory, after those that are installed."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
        importlib.invalidate_caches()


def _beside(name: str) -> str:
    """Return how a sentence about a missing module ends: with one of the working directory, if one is near."""
    offer = nearest(name, [path.stem for path in Path.cwd().glob("*.py")] or [""])
    return f"; {offer}" if offer.startswith("did you") else " here or among the installed ones."

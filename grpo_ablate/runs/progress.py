"""What a long run says while it trains: one line that moves on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import os
import sys
import time
from typing import TextIO

QUIET = 1.0  # seconds before a run says anything
TERMINAL, PLAIN = 0.2, 15.0  # seconds between two reports


class Progress:
    """Reports of one run, by the first of its processes; nothing at all for a run of less than a second."""

    def __init__(
        self, name: str, rounds: int, stream: TextIO | None = None, *, unit: str = "round", measure: str = "reward"
    ):
        self.name, self.rounds, self.unit, self.measure = name, rounds, unit, measure
        self.stream = sys.stderr if stream is None else stream
        self.moving = self.stream.isatty()
        self.began = time.monotonic()
        self.last = self.began + QUIET - (TERMINAL if self.moving else PLAIN)
        self.first_round: int | None = None
        self.reward: float | None = None
        self.shown = False
        self.silent = os.environ.get("RANK", "0") != "0"

    def round(self, number: int, reward: float | None) -> None:
        """Note a finished round (or other ``unit``) and, where one was taken, the latest ``measure``."""
        if self.first_round is None:
            self.first_round = number - 1
        if reward is not None:
            self.reward = reward
        now = time.monotonic()
        if self.silent or now - self.last < (TERMINAL if self.moving else PLAIN):
            return
        self.last, self.shown = now, True
        seconds = now - self.began
        left = seconds / (number - self.first_round) * max(0, self.rounds - number)
        done = f"{self.name}: {self.unit} {number} of {self.rounds}"
        measured = "" if self.reward is None else f", {self.measure} {self.reward:.4f}"
        text = f"{done}{measured}, {left:.0f} s left"
        print(f"\r{text:<79}" if self.moving else text, end="" if self.moving else "\n", file=self.stream)
        self.stream.flush()

    def close(self) -> None:
        """Leave the terminal's line."""
        if self.moving and self.shown:
            print(file=self.stream)

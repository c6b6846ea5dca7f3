"""Verifiers that hang, crash or misbehave cost their own verdict and no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grpo_ablate.errors import UserError
from grpo_ablate.tasks.text.judging import Judge
from grpo_ablate.tasks.text.supervised import Supervised
from grpo_ablate.tasks.text.verifiers import Named, Options, Own

MODULE = '''
import ctypes, math, os, signal, subprocess, sys, threading, time

class Wordless(Exception):
    def __str__(self):
        raise RuntimeError("no words")

def judge(response, answer, row):
    """Does what the response says."""
    if response == "sleep":
        time.sleep(3600)
    if response == "loop":
        while True:
            pass
    # C code that holds the interpreter's lock: no other thread and no signal handler of Python runs.
    if response == "sleep in C":
        ctypes.PyDLL(None).sleep(3600)
    if response == "loop in C":
        return 0 * (10 ** 10 ** 9)
    if response == "raise":
        raise KeyError("no such thing")
    if response == "exit":
        sys.exit(0)
    if response == "die":
        os._exit(3)
    if response == "abort":
        os.abort()
    if response == "stop":  # as a signal to the whole job arrives here, too
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            os.kill(os.getpid(), number)
        return 1.0
    if response == "print":
        print("to standard output", flush=True)
        os.write(1, b"and past it")
    if response == "start":  # a process that outlives the verdict
        child = subprocess.Popen(["sleep", "3600"])
        return child.pid
    if response == "end later":
        threading.Timer(0.3, os._exit, [0]).start()
    if response in ("None", "nan", "inf", "text"):
        return {"None": None, "nan": math.nan, "inf": math.inf, "text": "0.5"}[response]
    if response == "half a pair":
        raise ValueError("\\ud800")
    if response == "wordless":
        raise Wordless
    if response == "row":
        return row["weight"]
    return response == answer
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The dotted path of a verifier in the working directory, in a module of a name of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"misbehaving_{tmp_path.name}".replace("-", "_")
    Path(f"{name}.py").write_text(MODULE)
    return f"{name}:judge"


def judged(path: str, responses: list[str], seconds: float = 0.5):
    judge = Judge(Own(path), ("score", "accuracy"), "off", seconds)
    try:
        return judge(range(len(responses)), responses, [("yes", {"weight": 0.25})] * len(responses))
    finally:
        judge.verify.close()


def test_each_failure_is_counted_with_its_reason_and_leaves_its_neighbours_alone(own: str) -> None:
    reasons = {
        "raise": "KeyError: 'no such thing'",
        "None": "returned None",
        "nan": "returned nan, expected a finite number",
        "inf": "returned inf, expected a finite number",
        "text": "returned '0.5', expected a finite number",
        "sleep": "took longer than 5 s by the clock",
        "sleep in C": "took longer than 5 s by the clock",
        "loop": "took longer than 0.5 s",
        "loop in C": "took longer than 0.5 s",
        "exit": "SystemExit: 0",
        "half a pair": "ValueError: \\ud800",  # as text that every file takes
        "wordless": "Wordless, whose message cannot be had",
        "die": "ended its process (exit code 3)",
        "abort": f"ended its process (signal {int(signal.SIGABRT)})",
    }
    responses = ["yes"]
    for response in reasons:
        responses += [response, "yes", "no"]
    found = judged(own, responses)
    expected = [1.0, *([None, 1.0, 0.0] * len(reasons))]
    assert [None if value != value else value for value in found.reward] == expected
    assert [None if value != value else value for value in found.components["accuracy"]] == expected
    assert {fault.response: fault.reason for fault in found.faults} == reasons
    assert [responses[fault.number] for fault in found.faults] == list(reasons)


def test_graded_scores_printing_and_whole_rows_are_fine(own: str, capfd: pytest.CaptureFixture[str]) -> None:
    found = judged(own, ["print", "row", "yes"])
    assert found.components == {"score": [0.0, 0.25, 1.0], "accuracy": [0.0, 0.0, 1.0]}
    assert not found.faults
    out, err = capfd.readouterr()
    assert out == "" and "to standard output" in err and "and past it" in err


def test_what_a_verifier_started_ends_with_it(own: str) -> None:
    supervised = Supervised(Own(own), 5, workers=1)
    child = int(supervised([("start", "", {})])[0].value.values["score"])
    assert _runs(child)
    supervised.close()
    deadline = time.monotonic() + 30
    while _runs(child):
        assert time.monotonic() < deadline, "the process hangs on"
        time.sleep(0.1)


def test_a_process_that_ends_between_calls_fails_none(own: str) -> None:
    supervised = Supervised(Own(own), 5, workers=1)
    assert supervised([("end later", "", {})])[0].reason is None
    process = supervised.workers[0].process
    assert process is not None and process.wait(30) == 0
    assert supervised([("yes", "yes", {})])[0].value.values["score"] == 1.0
    supervised.close()


def test_a_catastrophic_regular_expression_is_stopped() -> None:
    judge = Judge(Named("regular-expression", Options(pattern=r"(a+)+$")), ("accuracy",), "off", 0.5)
    began = time.monotonic()
    found = judge([0, 1], ["a" * 60 + "b", "aa"], [("aa", {}), ("aa", {})])
    judge.verify.close()
    assert [fault.reason for fault in found.faults] == ["took longer than 0.5 s"]
    assert found.reward[1] == 1.0
    assert time.monotonic() - began < 60


def test_many_processes_give_the_outcomes_in_order(own: str) -> None:
    responses = ["yes", "no", "raise", "row"] * 40
    one, four = Supervised(Own(own), 5, workers=1), Supervised(Own(own), 5, workers=4)
    calls = [(response, "yes", {"weight": number}) for number, response in enumerate(responses)]
    first, second = one(calls), four(calls)
    assert first == second
    assert [outcome.value.values["score"] for outcome in first[3::4]] == list(range(3, 160, 4))
    assert sum(worker.process is not None for worker in four.workers) == 4
    one.close()
    four.close()


def test_equal_calls_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"counting_{tmp_path.name}".replace("-", "_")
    Path(f"{name}.py").write_text(
        "calls = 0\ndef judge(response, answer, row):\n    global calls\n    calls += 1\n    return calls\n"
    )
    judge = Judge(Own(f"{name}:judge"), ("score", "accuracy"), "off", 5)
    found = judge([7, 7, 7, 8], ["a", "b", "a", "a"], [("", {})] * 4)
    assert found.reward == [1, 2, 1, 3]
    judge.verify.close()


def test_a_slow_import_is_no_slow_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"slow_{tmp_path.name}".replace("-", "_")
    Path(f"{name}.py").write_text(
        "import time\ntime.sleep(1.5)\ndef judge(response, answer, row):\n    return 1\n"
    )
    assert judged(f"{name}:judge", ["x"]).reward == [1.0]


def test_a_verifier_that_does_not_import_stops_the_run_with_a_sentence(own: str) -> None:
    with pytest.raises(
        UserError, match=r"^the verifier cannot be started: 'missing_module:judge': there is no module"
    ):
        judged("missing_module:judge", ["x"])


def test_signals_that_stop_the_whole_job_cost_no_verdict(own: str) -> None:
    found = judged(own, ["stop"])
    assert found.reward == [1.0] and not found.faults


def test_no_process_outlives_its_parent(own: str, tmp_path: Path) -> None:
    """Not even one that hangs in C code when its parent is killed."""
    program = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "from grpo_ablate.tasks.text.supervised import Worker\n"
        "from grpo_ablate.tasks.text.verifiers import Own\n"
        "import pickle, threading\n"
        f"worker = Worker(pickle.dumps(Own({own!r})), 0.5)\n"
        "worker.start(); worker.seconds = 3600\n"  # this one kills nobody
        "print(worker.process.pid, flush=True)\n"
        "worker.call(('sleep in C', '', {}))\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=tmp_path)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    time.sleep(1)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 60
    while _runs(child):
        assert time.monotonic() < deadline, "the process hangs on"
        time.sleep(0.2)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]

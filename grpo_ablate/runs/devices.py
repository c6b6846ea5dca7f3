"""The GPUs of this machine, and their lease to one job at a time.

A lease is a lock on a file per device, in one folder of the machine, which the kernel frees when the last process
that holds it dies, however it dies. A job takes all its devices at once or none, so that no two jobs wait for each
other; those that may use the same devices queue, so that a job that wants many is not overtaken for ever.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from grpo_ablate.errors import UserError

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
FOLDER = "GRPO_ABLATE_LEASES"  # the folder of the leases, where another than the default is wanted
HELD = "GRPO_ABLATE_HELD"  # the leases of the process that started this one, to be held beside it
DEFAULT_FOLDER = Path("/tmp/grpo-ablate-leases")  # not below TMPDIR, which jobs of one machine may have apart
QUERY = ("nvidia-smi", "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits")


@dataclass(frozen=True)
class Device:
    """One GPU. ``address`` is how CUDA_VISIBLE_DEVICES calls it, ``uuid`` what stays when that changes."""

    address: str
    uuid: str
    name: str
    memory: int  # bytes


def installed() -> tuple[Device, ...]:
    """Return the GPUs that the driver shows to this process, whatever CUDA_VISIBLE_DEVICES says."""
    try:
        done = subprocess.run(QUERY, capture_output=True, errors="replace", timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    rows = [[entry.strip() for entry in line.split(",")] for line in done.stdout.splitlines()]
    return tuple(
        Device(index, uuid, name, int(memory) * 2**20 if memory.isdecimal() else 0)
        for index, uuid, name, memory in (row for row in rows if len(row) == len(Device.__dataclass_fields__))
        if index.isdecimal() and uuid.startswith("GPU-")  # one that fell off the bus has neither
    )


def visible(devices: Sequence[Device], setting: str | None) -> tuple[Device, ...]:
    """Return the devices that ``setting`` of CUDA_VISIBLE_DEVICES leaves, in its order; None: all of them.

    As CUDA reads it: numbers or beginnings of uuids, up to the first that means no device, and nothing at all
    where one is named twice. A part of a device (MIG) is a device of its own.

    >>> two = [Device("0", "GPU-a1", "x", 0), Device("1", "GPU-b2", "x", 0)]
    >>> [device.uuid for device in visible(two, "1,0")], visible(two, "-1"), visible(two, "GPU-b,7")[0].address
    (['GPU-b2', 'GPU-a1'], (), 'GPU-b')
    """
    if setting is None:
        return tuple(devices)
    found: dict[str, Device] = {}
    for address in map(str.strip, setting.split(",")):
        named = [device for device in devices if _means(address, device)]
        if address.startswith("MIG-"):
            named = [Device(address, address, "MIG", 0)]
        if len(named) != 1:
            break
        if named[0].uuid in found:
            return ()
        found[named[0].uuid] = replace(named[0], address=address)
    return tuple(found.values())


def _means(address: str, device: Device) -> bool:
    return address == device.address or (address.startswith("GPU-") and device.uuid.startswith(address))


@contextmanager
def leased(count: int, stop: Callable[[], str | None] = lambda: None) -> Iterator[tuple[Device, ...]]:
    """Hold ``count`` free GPUs of those that this process may use, and make them all that CUDA will show it.

    To be entered before torch looks for devices. Waits where too few are free. With a ``count`` of 0 it leaves
    everything as it is, and holds what the process that started this one has leased.

    Raises:
        UserError: there are fewer devices than that, free or not, or ``stop`` gave a reason while waiting.
    """
    if count == 0:
        with _beside_the_parent():
            yield ()
        return
    folder, setting = Path(os.environ.get(FOLDER) or DEFAULT_FOLDER), os.environ.get(VISIBLE)
    usable = visible(installed(), setting)
    if len(usable) < count:
        raise UserError(f"--gpus {count}: {_too_few(len(usable), setting)}")
    handles: list[int] = []
    try:
        chosen = _take(usable, count, folder, handles, stop)
        addresses = ",".join(device.address for device in chosen)
        # A number means to CUDA what it means to the driver only in the driver's own order.
        with _environment({VISIBLE: addresses, ORDER: "PCI_BUS_ID", HELD: _paths(chosen, folder)}):
            yield chosen
    finally:
        for handle in handles:
            os.close(handle)


def held() -> list[str]:
    """Return the names of the devices that this process has leased or uses without a lease.

    Of what the process that started it has leased, it holds its part.
    """
    leases = _names(os.environ.get(HELD, ""))
    if not leases:
        return [_cuda().get_device_name(place) for place in _used()]
    place = os.environ.get("RANK")
    return list(leases) if place is None else [leases[int(place) % len(leases)]]


@cache
def _names(leases: str) -> tuple[str, ...]:
    """Return the names of the devices whose leases are these files."""
    files = [Path(path).name for path in leases.split(os.pathsep) if path]
    known = {_path(device, Path()).name: device.name for device in installed()} if files else {}
    return tuple(known.get(file, file) for file in files)


def peak_device_memory() -> int:
    """Return the most bytes that torch has held on one device."""
    return max((_cuda().max_memory_reserved(place) for place in _used()), default=0)


def _used() -> list[int]:
    """Return the numbers of the devices on which torch has held anything in this process."""
    if "torch" not in sys.modules or not _cuda().is_initialized():
        return []
    return [place for place in range(_cuda().device_count()) if _cuda().max_memory_reserved(place) > 0]


def _cuda() -> Any:
    return sys.modules["torch"].cuda


def _too_few(count: int, setting: str | None) -> str:
    if count == 0 and setting is None:
        return "no GPU was found here (nvidia-smi names none); `grpo-ablate doctor` says what this machine has."
    where = "on this machine" if setting is None else f"left by {VISIBLE}={setting}"
    return f"{count} GPU{'' if count == 1 else 's'} {where}; ask for fewer, or run it on another machine."


def _take(
    usable: Sequence[Device], count: int, folder: Path, handles: list[int], stop: Callable[[], str | None]
) -> tuple[Device, ...]:
    """Lock ``count`` of the devices once so many are free; ``handles`` gets the descriptors of the locks."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(folder, error.strerror) from None
    _open_to_all(folder, 0o1777)
    alike = hashlib.sha256("\n".join(sorted(device.uuid for device in usable)).encode()).hexdigest()[:16]
    with _open(folder / f"queue-{alike}") as queue, _open(folder / "mutex") as mutex:
        began, told = time.monotonic(), False
        in_turn = False
        while True:
            in_turn = in_turn or _locked(queue)
            if in_turn:
                fcntl.flock(mutex, fcntl.LOCK_EX)
                chosen = _free(usable, count, folder, handles)
                fcntl.flock(mutex, fcntl.LOCK_UN)
                if chosen:
                    return chosen
            reason = stop()
            if reason:
                raise UserError(f"stopped while waiting for a free GPU: {reason}.")
            if time.monotonic() - began > 1 and not told:
                told = True
                print(f"waiting for {count} of {len(usable)} GPUs{_holders(usable, folder)}", file=sys.stderr)
            time.sleep(0.05)


def _free(usable: Sequence[Device], count: int, folder: Path, handles: list[int]) -> tuple[Device, ...]:
    """Lock the first ``count`` free devices, or none where fewer are free; one process at a time."""
    found: dict[Device, int] = {}
    for device in usable:
        if len(found) < count:
            handle = _opened(_path(device, folder))
            if _locked(handle):
                found[device] = handle
            else:
                os.close(handle)
    if len(found) < count:
        for handle in found.values():
            os.close(handle)
        return ()
    for handle in found.values():
        fcntl.flock(handle, fcntl.LOCK_SH)  # shared, so that processes started by this one can hold it, too
        _sign(handle)
    handles += found.values()
    return tuple(found)


def _holders(devices: Sequence[Device], folder: Path) -> str:
    found = sorted({number for device in devices if (number := _signed(_path(device, folder))) is not None})
    return f", leased to process {', '.join(map(str, found))}" if found else ""


@contextmanager
def _beside_the_parent() -> Iterator[None]:
    """Hold the leases of the process that started this one: its death alone does not free the devices."""
    paths = os.environ.get(HELD)
    handles = [_opened(Path(path)) for path in paths.split(os.pathsep)] if paths else []
    try:
        for handle in handles:
            fcntl.flock(handle, fcntl.LOCK_SH)
        yield
    finally:
        for handle in handles:
            os.close(handle)


def _path(device: Device, folder: Path) -> Path:
    return folder / device.uuid.replace("/", "-")


def _paths(devices: Sequence[Device], folder: Path) -> str:
    return os.pathsep.join(str(_path(device, folder)) for device in devices)


@contextmanager
def _open(path: Path) -> Iterator[int]:
    handle = _opened(path)
    try:
        yield handle
    finally:
        os.close(handle)


def _opened(path: Path) -> int:
    """Return a descriptor of a lock file, which any user may have made; children do not inherit it."""
    for flags in (os.O_RDWR, os.O_RDONLY, os.O_RDWR | os.O_CREAT | os.O_EXCL, os.O_RDWR):
        try:
            handle = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except (FileNotFoundError, FileExistsError, PermissionError):
            continue
        except OSError as error:
            raise _unusable(path, error.strerror) from None
        if flags & os.O_CREAT:
            _open_to_all(path, 0o666)
        return handle
    raise _unusable(path, os.strerror(errno.EACCES))


def _unusable(path: Path, reason: str | None) -> UserError:
    """Return the error of a lease, or of their folder, that cannot be opened or made."""
    return UserError(f"{path}: GPUs cannot be leased there: {reason}; name another folder in {FOLDER}.")


def _open_to_all(path: Path, mode: int) -> None:
    """Give a file or folder that mode, where it is ours to give."""
    try:
        path.chmod(mode)
    except OSError:  # another user's, or on a disk that cannot be written
        return


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sign(handle: int) -> None:
    """Leave this process's number in its lease, where the file is not another user's."""
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        return


def _signed(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


@contextmanager
def _environment(changes: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

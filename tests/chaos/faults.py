"""What can go wrong on a real machine. A fault strikes a running command, or changes how the command starts."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_SLOW_DISK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
ssize_t write(int f, const void *b, size_t n) {
    static ssize_t (*next)(int, const void *, size_t);
    if (!next) next = dlsym(RTLD_NEXT, "write");
    if (f > 2) usleep(2000);
    return next(f, b, n);
}
ssize_t pwrite64(int f, const void *b, size_t n, off_t o) {
    static ssize_t (*next)(int, const void *, size_t, off_t);
    if (!next) next = dlsym(RTLD_NEXT, "pwrite64");
    usleep(2000);
    return next(f, b, n, o);
}
int fsync(int f) {
    static int (*next)(int);
    if (!next) next = dlsym(RTLD_NEXT, "fsync");
    usleep(50000);
    return next(f);
}
"""
_CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long jump(void) { /* seconds, in the first eight bytes of the file CHAOS_CLOCK */
    static volatile long *shared;
    if (!shared) {
        int f = open(getenv("CHAOS_CLOCK"), O_RDONLY);
        shared = mmap(0, 8, PROT_READ, MAP_SHARED, f, 0);
        close(f);
    }
    return *shared;
}
int clock_gettime(clockid_t c, struct timespec *t) {
    static int (*next)(clockid_t, struct timespec *);
    if (!next) next = dlsym(RTLD_NEXT, "clock_gettime");
    int code = next(c, t);
    if (c == CLOCK_REALTIME) t->tv_sec += jump();
    return code;
}
int gettimeofday(struct timeval *t, void *z) {
    static int (*next)(struct timeval *, void *);
    if (!next) next = dlsym(RTLD_NEXT, "gettimeofday");
    int code = next(t, z);
    t->tv_sec += jump();
    return code;
}
time_t time(time_t *t) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (t) *t = now.tv_sec;
    return now.tv_sec;
}
"""
"""libfaketime cannot be used: it makes `time.sleep` of Python 3.11 fail when only the clock of the day is changed."""


@functools.cache
def _library(source: str) -> Path | None:
    """Compile a library that is loaded before all others. None: there is no compiler."""
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "fault.c").write_text(source)
    command = ["cc", "-shared", "-fPIC", "-o", str(folder / "fault.so"), str(folder / "fault.c"), "-ldl"]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return folder / "fault.so"


USER_PROGRAM = "program of a user"
"""A comment in the code of jobs."""


@dataclass
class Start:
    """How a command starts: its environment, and what its process does first."""

    environment: dict[str, str]
    first: Callable[[], None] | None = None


@dataclass
class Target:
    """A running command, and the file system on which it works."""

    process: subprocess.Popen[bytes]
    folder: Path
    random: random.Random
    strikes: list[str] = field(default_factory=list)
    """What was done, in words."""

    def processes(self) -> list[psutil.Process]:
        """The process of the command and all below it that run, without programs of users."""
        try:
            top = psutil.Process(self.process.pid)
            return [process for process in (top, *top.children(recursive=True)) if _is_ours(process)]
        except psutil.NoSuchProcess:
            return []


def _is_ours(process: psutil.Process) -> bool:
    """Whether a process runs and is not the program of a user in a job: a killed program is a failed job."""
    try:
        return USER_PROGRAM not in " ".join(process.cmdline())  # raises if it has ended
    except psutil.Error:
        return False


class Fault:
    """One kind of fault. `strike` is called in the middle of a command, `end` after the command has ended."""

    name = ""

    @classmethod
    def missing(cls) -> str:
        """Why this machine cannot have the fault, or ''."""
        return ""

    def start(self, start: Start, target: Path, chance: random.Random) -> None:
        """Change how the command starts."""

    def strike(self, target: Target) -> None:
        """Do it."""

    def end(self, folder: Path) -> None:
        """Undo it."""


class Kill(Fault):
    """kill -9 of the command, or of one of its processes."""

    name = "kill -9"

    def __init__(self, *, whole: bool = False) -> None:
        """With `whole` the process of the command is killed, otherwise any of its processes."""
        self._whole = whole

    def strike(self, target: Target) -> None:
        processes = target.processes()
        if processes:
            chosen = processes[0] if self._whole else target.random.choice(processes)
            with contextlib.suppress(psutil.Error):
                command = " ".join(chosen.cmdline())[-80:]
                chosen.kill()
                target.strikes.append(f"kill -9 {chosen.pid} of {len(processes)} ({command})")


class Stop(Fault):
    """SIGSTOP of one process for up to three seconds."""

    name = "SIGSTOP"

    def strike(self, target: Target) -> None:
        for chosen in target.random.sample(target.processes(), k=min(1, len(target.processes()))):
            target.strikes.append(f"SIGSTOP {chosen.pid}")
            os.kill(chosen.pid, signal.SIGSTOP)
            time.sleep(target.random.uniform(0.2, 3))
            os.kill(chosen.pid, signal.SIGCONT)


class FullDisk(Fault):
    """The file system has no free byte."""

    name = "full disk"

    def strike(self, target: Target) -> None:
        target.strikes.append("full disk")
        with (target.folder / "filler").open("wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(1 << 16))
            except OSError:
                pass

    def end(self, folder: Path) -> None:
        (folder / "filler").unlink(missing_ok=True)


class ReadOnly(Fault):
    """The file system is read-only when the command starts."""

    name = "read-only folder"

    def start(self, start: Start, target: Path, chance: random.Random) -> None:
        subprocess.run(["mount", "-o", "remount,ro", str(target)], check=True)

    def strike(self, target: Target) -> None:
        target.strikes.append("read-only")

    def end(self, folder: Path) -> None:
        subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)


class SlowDisk(Fault):
    """Every write takes 2 ms and every fsync 50 ms more."""

    name = "slow disk"

    @classmethod
    def missing(cls) -> str:
        return "" if _library(_SLOW_DISK) else "no C compiler"

    def start(self, start: Start, target: Path, chance: random.Random) -> None:
        start.environment["LD_PRELOAD"] = str(_library(_SLOW_DISK))

    def strike(self, target: Target) -> None:
        target.strikes.append("slow disk")


class ClockJump(Fault):
    """The clock jumps by up to a day, forwards or backwards."""

    name = "clock jump"

    @classmethod
    def missing(cls) -> str:
        return "" if _library(_CLOCK) else "no C compiler"

    def start(self, start: Start, target: Path, chance: random.Random) -> None:
        library = _library(_CLOCK)
        assert library is not None
        self._file = library.with_name("jump")
        self._file.write_bytes(struct.pack("q", 0))
        start.environment |= {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(self._file)}

    def strike(self, target: Target) -> None:
        jump = target.random.choice((-86400, -3600, 3600, 86400))
        with self._file.open("r+b") as file:  # the same file: it is in the memory of the processes
            file.write(struct.pack("q", jump))
        target.strikes.append(f"clock {jump:+d} s")


class MemoryLimit(Fault):
    """The command may have less memory than it needs."""

    name = "memory limit"

    def start(self, start: Start, target: Path, chance: random.Random) -> None:
        limit = int(chance.uniform(0.05, 0.6) * 1e9)

        def first() -> None:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

        start.first = first

    def strike(self, target: Target) -> None:
        target.strikes.append("memory limit")


class FlippedByte(Fault):
    """The command is killed, then one bit of one file that it wrote is changed."""

    name = "flipped byte"

    def __init__(self, pattern: str) -> None:
        """Take the files that may be changed, as a pattern below the folder."""
        self.pattern = pattern
        self._chance = random.Random(0)

    def strike(self, target: Target) -> None:
        Kill(whole=True).strike(target)
        self._chance = target.random

    def end(self, folder: Path) -> None:
        files = sorted(path for path in folder.glob(self.pattern) if path.is_file() and path.stat().st_size)
        if files:
            path = self._chance.choice(files)
            content = bytearray(path.read_bytes())
            content[self._chance.randrange(len(content))] ^= 1 << self._chance.randrange(8)
            mode = path.stat().st_mode
            path.chmod(0o644)
            path.write_bytes(content)
            path.chmod(mode)

"""A worker: one process that holds a system, asked in lines of JSON, and stopped while it is not asked.

Thread pools of some systems go on spinning after a call. A stopped process (SIGSTOP) takes no processor time, so that
no system is measured beside another, and no system needs a setting for it that would cost it speed.
"""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import selectors
import signal
import subprocess
import time
from typing import Any

from environments import last_line

PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """In the child: a worker that is stopped would never notice that the controller was killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class WorkerFailed(Exception):
    """What a worker said, or how it ended."""


class WorkerProcess:
    def __init__(self, command: list[str], log: pathlib.Path, variables: dict[str, str] | None = None) -> None:
        self.log = log
        self.rest = b""
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | (variables or {}),
                start_new_session=True,
                preexec_fn=end_with_parent,
            )

    def ask(self, command: str, *, timeout: float = 300, **fields: Any) -> dict[str, Any]:
        """Lets the worker go on, asks, waits for the answer and stops it again."""
        try:
            self.send_signal(signal.SIGCONT)
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps({"command": command, **fields}).encode() + b"\n")
            self.process.stdin.flush()
            line = self.read_line(time.monotonic() + timeout)
            self.send_signal(signal.SIGSTOP)
        except OSError as error:
            raise WorkerFailed(self.how_it_ended()) from error
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError as error:
            raise WorkerFailed(f"answered {line[:200]!r}, which is not JSON") from error
        if answer.get("error"):
            raise WorkerFailed(str(answer["error"]).strip()[:500])
        return answer

    def read_line(self, deadline: float) -> bytes:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self.rest:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self.close()
                    raise WorkerFailed("did not answer in time")
                found = os.read(self.process.stdout.fileno(), 1 << 16)
                if not found:
                    raise WorkerFailed(self.how_it_ended())
                self.rest += found
        line, self.rest = self.rest.split(b"\n", 1)
        return line

    def how_it_ended(self) -> str:
        self.close()
        status = self.process.returncode
        ending = f"died of {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"
        return f"{ending}: {last_line(self.log)}"

    def send_signal(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def peak_bytes(self) -> int:
        """The most memory that was resident at once: mapped files, such as weights, included."""
        return 1024 * int(self.status_field("VmHWM").split()[0])

    def status_field(self, name: str) -> str:
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return line.split(":", 1)[1]
        raise WorkerFailed(f"its status has no {name}")

    def processor_ticks(self) -> int:
        """Time that its threads were given so far."""
        try:
            fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            return 0
        return int(fields[11]) + int(fields[12])

    def close(self) -> None:
        """Ends it, stopped or not, unless it has ended; returns when it is gone."""
        if self.process.poll() is None:
            try:
                # Its input ends: a worker that waits for it leaves by itself, and says so with its exit code.
                assert self.process.stdin is not None
                self.process.stdin.close()
                self.send_signal(signal.SIGCONT)
                self.process.wait(timeout=5)
            except (OSError, subprocess.TimeoutExpired):
                self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    continue

"""Real servers on loopback: Debian's PostgreSQL and Redis, each with a password and a directory of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PASSWORD = "s3cret-pass"


def _missing(what: str) -> None:
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(f"{what} is not installed")
    pytest.skip(f"{what} is not installed")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class PostgresServer:
    """A PostgreSQL that can be stopped and started again."""

    def __init__(self, binaries: Path, home: Path) -> None:
        self.binaries = binaries
        self.home = home
        self.port = free_port()
        # The server refuses to run as root.
        self.as_user: dict[str, Any] = {}
        if os.getuid() == 0:
            shutil.chown(home, "postgres", "postgres")
            self.as_user = {"user": "postgres", "group": "postgres", "extra_groups": []}
        (home / "password").write_text(PASSWORD)
        os.chmod(home / "password", 0o644)
        self._run("initdb", "-D", home / "data", "-U", "tester", "-A", "scram-sha-256", "--no-sync", "-E", "UTF8",
                  "--locale=C", f"--pwfile={home / 'password'}")  # fmt: skip

    @property
    def dsn(self) -> str:
        return f"postgresql://tester:{PASSWORD}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        settings = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self.home} -c fsync=off"
        self._run("pg_ctl", "-D", self.home / "data", "-w", "-l", self.home / "log", "-o", settings, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", self.home / "data", "-w", "-m", "immediate", "stop")

    def _run(self, program: str, *args: object) -> None:
        subprocess.run(
            [self.binaries / program, *map(str, args)],
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.home, **self.as_user,
        )  # fmt: skip


class RedisServer:
    """A Redis that keeps nothing on disk, and can be stopped and started again."""

    def __init__(self, binary: str, home: Path) -> None:
        self.binary = binary
        self.home = home
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://:{PASSWORD}@127.0.0.1:{self.port}/0"

    def start(self) -> None:
        self.process = subprocess.Popen(
            [self.binary, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--requirepass", PASSWORD],
            cwd=self.home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        while self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except ConnectionRefusedError:
                time.sleep(0.01)
        raise RuntimeError("redis-server ended at once")

    def stop(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server that runs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        _missing("PostgreSQL")
    with tempfile.TemporaryDirectory(prefix="agentpipe-pg-", ignore_cleanup_errors=True) as home:
        server = PostgresServer(found[-1].parent, Path(home))
        server.start()
        yield server
        server.stop()


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    """A Redis server that runs."""
    binary = shutil.which("redis-server")
    if binary is None:
        _missing("redis-server")
    assert binary is not None
    with tempfile.TemporaryDirectory(prefix="agentpipe-redis-", ignore_cleanup_errors=True) as home:
        server = RedisServer(binary, Path(home))
        server.start()
        yield server
        server.stop()

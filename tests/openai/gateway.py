"""LiteLLM's proxy, a gateway that others wrote, in front of the local model: installed and started for real."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REQUIREMENT = "litellm[proxy]==1.108.7"
KEY = "sk-gateway-test-key"
_START_SECONDS = 150


def install() -> Path:
    """The gateway's own environment, made once and kept in the cache (750 MB): it wants other versions than we do."""
    cache = Path(os.environ.get("AGENTPIPE_TEST_CACHE") or Path.home() / ".cache" / "agentpipe-tests")
    place = cache / REQUIREMENT.replace("[", "-").replace("]==", "-")
    done = place / "installed"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, REQUIREMENT], check=True, capture_output=True, text=True)
        done.touch()
    return place / "bin"


@contextmanager
def running(model_url: str, model_key: str, port: int, home: Path) -> Iterator[str]:
    """The gateway in front of one endpoint; its URL."""
    config = home / "gateway.yaml"
    config.write_text(
        "model_list:\n"
        "  - model_name: small\n"
        f"    litellm_params: {{model: openai/local, api_base: '{model_url}', api_key: '{model_key}'}}\n"
        f"general_settings: {{master_key: {KEY}}}\n"
        "litellm_settings: {telemetry: false, num_retries: 0}\n"
    )
    log = home / "gateway.log"
    env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "127.0.0.1", "PYTHONPATH": ""}
    command = [str(install() / "litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=output, env=env, cwd=home) as process,
    ):
        try:
            _wait(f"http://127.0.0.1:{port}/health/liveliness", process, log)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the gateway says that it lives."""
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(url, timeout=2).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError(f"the gateway did not start: {log.read_text('utf-8', 'replace')[-2000:]}")

"""The command ``agentpipe``: talk to a model with tools, and look at a pipeline."""

from __future__ import annotations

from agentpipe.cli._main import main

__all__ = ["main"]

"""How much CPU agentpipe takes, beside the plain openai SDK and a bare loop: ``python -m tests.benchmarks``."""

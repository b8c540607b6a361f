"""One file each; import from `agentpipe` or from the file itself."""

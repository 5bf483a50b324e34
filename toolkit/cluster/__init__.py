"""Where a layout runs: what a scheduler has given, the command that starts it there, and the script that asks for it."""

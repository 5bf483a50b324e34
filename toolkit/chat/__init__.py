"""Talking to what a run has left: in a terminal, or a file of prompts; beside its base where that is asked for."""

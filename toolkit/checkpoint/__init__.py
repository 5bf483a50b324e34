"""Checkpoints: written whole or not at all, readable under any layout, and never run as code."""

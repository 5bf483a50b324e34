"""Adapters: what peft trains beside a frozen model, and how it becomes a part of the model."""

"""Fine-tuning on Hugging Face Accelerate: a recipe says what to learn, a layout says how to run it."""

__version__ = "0.1.0"

"""The data path: sources, rows, conversations, tokens and label mask, batch plan, micro-batches."""

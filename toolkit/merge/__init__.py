"""From an adapter and its base to one plain model, with a proof that it is the model that was trained."""

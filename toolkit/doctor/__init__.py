"""What to know of a machine or a cluster before trusting it: facts, checks and measured collectives."""

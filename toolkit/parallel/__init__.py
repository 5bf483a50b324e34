"""How one model is spread over processes: what a layout file chooses, and the kinds of sharding that are ours."""

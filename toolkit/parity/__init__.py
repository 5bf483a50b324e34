"""Does a recipe follow the same curve on every layout? Run it on each, compare step by step, and say where it leaves."""

"""Before the first step: starts are checked, looked at once, and landed where the sampler needs it."""

"""A run: the loop over compiled chunks, where draws go, going on from a trace, and `og.sample` around them."""

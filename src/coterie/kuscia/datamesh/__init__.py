"""A domain's data as its engines see it: what there is, what they may do with it, and the data itself."""

"""HTTP requests become calls: the program of gateway pods, and the links of the functions process to them."""

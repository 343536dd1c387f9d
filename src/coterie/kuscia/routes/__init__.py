"""Routes between domains: as objects, as lines of a table, and what is wrong with one."""

"""Between control planes: jobs that several of them carry out, each on its own side."""

"""What the engines share that start programs of other projects: their configuration, their table, calls to partners."""

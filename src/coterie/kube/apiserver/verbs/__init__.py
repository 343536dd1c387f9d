"""What can be done with objects: one module for each group of verbs that share logic."""

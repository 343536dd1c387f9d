"""The reporter: engines tell here how far they are with a task."""

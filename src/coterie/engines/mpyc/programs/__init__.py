"""Programs that come along. Each is started as a file of its own, as any program for MPyC."""

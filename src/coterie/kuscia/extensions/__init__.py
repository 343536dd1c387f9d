"""What Kuscia adds to the platform, one module for each extension point."""

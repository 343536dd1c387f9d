"""What Kuscia's controllers share."""

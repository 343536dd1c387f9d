"""What an engine finds in its container beyond what any pod has: rendered files, certificates, the domain's data."""

"""NVFlare jobs, unmodified, between organisations: the server of NVFlare at one, a client at each that has rows."""

"""One folder for each controller of Kuscia's kinds."""

"""What the user's code imports. In an actor this directory is on `sys.path`, nowhere else: `import serverless`."""

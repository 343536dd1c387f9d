"""One module for each command: HELP, arguments(parser), run(args, app)."""

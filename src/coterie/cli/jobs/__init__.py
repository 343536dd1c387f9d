"""Jobs on the command line: following, drawing, logs."""

"""`coterie completion`: what the shell offers when TAB is pressed."""

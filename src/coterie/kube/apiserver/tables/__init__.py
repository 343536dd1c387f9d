"""Objects as rows of a table: the columns that kubectl shows."""

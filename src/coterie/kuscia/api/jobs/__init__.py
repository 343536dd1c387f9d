"""What every part that handles jobs agrees on: `validation`, `references`, `phases`, `graph`, `commands`, `conditions`,
`retries`."""

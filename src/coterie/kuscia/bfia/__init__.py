"""Jobs with partners that speak BFIA's interconnection protocol. See README.md."""

"""How a lite comes to its control plane: the server's side and the lite's side of `POST /register`."""

"""The environment of the PSI engine; what is common to all such environments stands in `engineenv`."""

from __future__ import annotations

from coterie.cli.engine_environment import PSI, VARIABLE, main

__all__ = ["NAME", "VARIABLE", "add_image", "directory", "install", "installed", "register"]

NAME = PSI.name
directory = PSI.directory
installed = PSI.installed
install = PSI.install
register = PSI.register
add_image = PSI.add_image

if __name__ == "__main__":
    main(PSI)

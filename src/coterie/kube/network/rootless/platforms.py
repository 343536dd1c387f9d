"""Where Coterie runs. Pure, and without imports: this is asked before anything that needs Linux is loaded."""

from __future__ import annotations

_LINUX_ONLY = "Coterie runs on Linux (x86-64 and arm64)"


def platform_problem(platform: str) -> str:
    """What to tell a user on this system (`sys.platform`), with the command that gets a Linux there; empty: it runs here."""
    if platform.startswith("linux"):
        return ""
    if platform == "darwin":
        return (
            f"{_LINUX_ONLY}, not on macOS itself. Lima gives you a small Linux on this Mac; run Coterie in it:\n"
            "  brew install lima && limactl start && lima"
        )
    if platform in ("win32", "cygwin", "msys"):
        return (
            f"{_LINUX_ONLY}, not on Windows itself. WSL 2 gives you a Linux on this computer; run Coterie in it:\n"
            "  wsl --install"
        )
    return f"{_LINUX_ONLY}, not on this system ({platform}). Run it in a Linux virtual machine."

"""The three shells: their scripts, how they hand over the command line, and how a candidate must be written (pure).

A candidate may be a name that a partner chose. It reaches the command line as text in every case: bash inserts candidates as
they are, so they are quoted here; zsh (`compadd`) and fish quote what they insert themselves. No script uses `eval`,
`compgen -W` or another way that expands a candidate, and a candidate is never part of the script.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SHELLS = ("bash", "zsh", "fish")

_BASH = """\
# Completion of coterie for bash; `coterie completion --help` says how to install it.
_coterie() {
  local line first=1
  COMPREPLY=()
  while IFS= read -r line; do
    if [[ $first ]]; then
      first=
      case $line in
        files) compopt -o default 2>/dev/null ;;
        directories) compopt -o dirnames 2>/dev/null ;;
      esac
    else
      COMPREPLY+=("$line")
    fi
  done < <(command coterie __complete bash "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" 2>/dev/null </dev/null)
}
complete -F _coterie coterie
"""

_ZSH = """\
#compdef coterie
# Completion of coterie for zsh; `coterie completion --help` says how to install it.
_coterie() {
  local line value kind
  local -a values shown
  while IFS= read -r line; do
    if [[ -z $kind ]]; then
      kind=$line
    else
      value=${line%%$'\\t'*}
      values+=("$value")
      shown+=("${line/$'\\t'/  -- }")
    fi
  done < <(command coterie __complete zsh "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null </dev/null)
  (( $#values )) && compadd -l -d shown -a values
  case $kind in
    files) _files ;;
    directories) _files -/ ;;
  esac
}
if [[ ${funcstack[1]} == _coterie ]]; then
  _coterie "$@"
elif (( $+functions[compdef] )); then
  compdef _coterie coterie
fi
"""

_FISH = """\
# Completion of coterie for fish; `coterie completion --help` says how to install it.
function __coterie_complete
  set -l words (commandline -opc)
  set -l current (commandline -ct)
  set -l answer (command coterie __complete fish $words[2..-1] $current 2>/dev/null </dev/null)
  test (count $answer) -gt 1; and printf '%s\\n' $answer[2..-1]
  switch "$answer[1]"
    case files
      __fish_complete_path $current
    case directories
      __fish_complete_directories $current ''
  end
end
complete -c coterie -f -a '(__coterie_complete)'
"""

SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./:=@%+,")


@dataclass(frozen=True, slots=True)
class TypedLine:
    """A command line up to the cursor."""

    words: tuple[str, ...]
    """Complete words, without their quotes."""
    current: str
    """The word at the cursor, without quotes."""
    quote: str
    """The quote that is open at the cursor: empty, ' or \"."""
    kept: int
    """So many characters of the current word are not replaced by what is completed."""


def parse_line(line: str, breaks: str = "") -> TypedLine:
    """`line` as bash would read it. `breaks`: characters after which readline begins a new word to replace."""
    words: list[str] = []
    current: list[str] = []
    quote, kept, begun, escaped = "", 0, False, False
    for char in line:
        if escaped:
            current.append(char)
            escaped = False
        elif char == "\\" and quote != "'":
            escaped = begun = True
        elif quote:
            if char == quote:
                quote = ""
            else:
                current.append(char)
        elif char in "'\"":
            quote, begun, kept = char, True, len(current)
        elif char.isspace():
            if begun or current:
                words.append("".join(current))
            current, kept, begun = [], 0, False
        else:
            current.append(char)
            if char in breaks:
                kept = len(current)
    return TypedLine(tuple(words), "".join(current), quote, kept)


def bash_candidates(candidates: Sequence[tuple[str, str]], line: TypedLine) -> list[str]:
    return [_bash_quoted(value[line.kept :], line.quote) for value, _ in candidates]


def _bash_quoted(text: str, quote: str) -> str:
    """Inert after the quote that is open, and without one."""
    if quote == "'":
        return text.replace("'", "'\\''")
    if quote == '"':
        return "".join(f"\\{char}" if char in '\\"$`!' else char for char in text)
    return "".join(char if char in _PLAIN or char.isalnum() else f"\\{char}" for char in text)


def fish_word(text: str) -> str:
    """The word at the cursor as fish hands it over: with its quotes."""
    return parse_line(text.replace("\\ ", "\0")).current.replace("\0", " ")


def described(candidates: Sequence[tuple[str, str]]) -> list[str]:
    """Lines for zsh and fish: value, tab, description."""
    return [f"{value}\t{' '.join(text.split())}" if text else value for value, text in candidates]

"""CEL, the expression language of validation rules: compiled to closures, bounded in work, with Kubernetes' libraries.

    source -> lexer -> parser -> build (types checked, closures made) -> Program
    schema -> decls (what a rule sees) -> rules: `compile_rules` when a definition is stored, `check` for each object

Why it is our own: docs/designs/cel.md.
"""

from coterie.kube.api.cel.rules import check, compile_rules

__all__ = ["check", "compile_rules"]

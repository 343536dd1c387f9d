"""CEL, the expression language of validation rules: compiled to closures, bounded in work, with Kubernetes' libraries.

    source -> lexer -> parser -> build (types checked, closures made) -> Program
    schema -> decls (what a rule sees) -> rules: `compile_rules` when a definition is stored, `check` for each object
    schema -> cost -> rule_costs: what is refused when a definition is created, because it could take too long

Why it is our own: docs/designs/cel.md.
"""

from coterie.kube.api.cel.rule_costs import cost_faults
from coterie.kube.api.cel.rules import check, compile_rules

__all__ = ["check", "compile_rules", "cost_faults"]

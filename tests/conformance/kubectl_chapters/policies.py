"""Admission policies: what they refuse, warn of and change, in the words that kubectl shows."""

from __future__ import annotations

from kubectl_steps import Chapter, Command

_MATCH = """
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: t-policies}}
    resourceRules: [{apiGroups: [%s], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [%s]}]
"""
_POLICY = (
    """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: demo-policy.example.com}
spec:
  failurePolicy: Fail
  paramKind: {apiVersion: v1, kind: ConfigMap}
  variables: [{name: most, expression: "int(params.data.most)"}]
  validations:
  - expression: "object.spec.replicas <= variables.most"
    messageExpression: "'no more than ' + params.data.most + ' replicas'"
"""
    + _MATCH.lstrip("\n") % ("apps", "deployments")
)
_BINDING = """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: demo-binding.example.com}
spec:
  policyName: demo-policy.example.com
  validationActions: [%s]
  paramRef: {name: limits, parameterNotFoundAction: Deny}
"""
_MUTATING = (
    """
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: mark.example.com}
spec:
  reinvocationPolicy: Never
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: >
        Object{metadata: Object.metadata{labels: Object.metadata.labels{mark: "made"}}}
"""
    + _MATCH.lstrip("\n") % ('""', "configmaps")
    + """---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: mark.example.com}
spec: {policyName: mark.example.com}
"""
)
_REFUSED = (
    r"ValidatingAdmissionPolicy 'demo-policy.example.com' with binding 'demo-binding.example.com' denied request: "
    r"no more than 2 replicas"
)
_WARNED = (
    r"Warning: Validation failed for ValidatingAdmissionPolicy 'demo-policy.example.com' with binding "
    r"'demo-binding.example.com': no more than 2 replicas"
)

POLICIES = Chapter(
    "policies",
    (
        Command("broken", "apply -f broken.yaml", rc=1, err=(r"spec\.validations\[0\]\.expression: Invalid value", r"undeclared reference to 'params'")),
        Command("policy", "apply -f policy.yaml", out="validatingadmissionpolicy.admissionregistration.k8s.io/demo-policy.example.com created"),
        Command("columns", "get validatingadmissionpolicies", out=(r"^NAME\s+VALIDATIONS\s+PARAMKIND\s+AGE", r"^demo-policy.example.com\s+1\s+v1/ConfigMap")),
        Command("type checking", "get validatingadmissionpolicy demo-policy.example.com -o json", check=lambda p: p["status"] == {"observedGeneration": 1, "typeChecking": {}}),
        Command("binding", "apply -f binding.yaml", out="demo-binding.example.com created"),
        Command("bindings", "get validatingadmissionpolicybindings", out=r"^demo-binding.example.com\s+demo-policy.example.com\s+\*/limits"),
        Command("no parameters", "create deployment web --image=nginx --replicas=1", rc=1, err=r"no params found for policy binding with `Deny` parameterNotFoundAction"),
        Command("parameters", "create configmap limits --from-literal=most=2", out="created"),
        Command("refused", "create deployment web --image=nginx --replicas=3", rc=1, err=_REFUSED),
        Command("allowed", "create deployment web --image=nginx --replicas=2", out="deployment.apps/web created"),
        Command("refused change", "patch deployment web -p '{\"spec\":{\"replicas\":5}}'", rc=1, err=_REFUSED),
        Command("server dry run", "patch deployment web --dry-run=server -p '{\"spec\":{\"replicas\":5}}'", rc=1, err=_REFUSED),
        Command("warn instead", "apply -f warning.yaml", out="configured"),
        Command("warned", "patch deployment web -p '{\"spec\":{\"replicas\":5}}'", out="patched", err=_WARNED),
        Command("mutating", "apply -f mutating.yaml", out="mutatingadmissionpolicy.admissionregistration.k8s.io/mark.example.com created"),
        Command("mutated", "create configmap marked", out="created"),
        Command("mark", "get configmap marked -o jsonpath={.metadata.labels.mark}", out="^made$"),
        Command("delete", "delete -f mutating.yaml -f binding.yaml -f policy.yaml", out="deleted"),
        Command("unbound", "create configmap unmarked", out="created"),
        Command("no mark", "get configmap unmarked -o jsonpath={.metadata.labels}", absent="made"),
    ),
    {
        "broken.yaml": _POLICY.replace("  paramKind: {apiVersion: v1, kind: ConfigMap}\n", "").replace(
            "object.spec.replicas <= variables.most", "object.spec.replicas <= params.most"
        ),
        "policy.yaml": _POLICY,
        "binding.yaml": _BINDING % "Deny",
        "warning.yaml": _BINDING % "Warn",
        "mutating.yaml": _MUTATING,
    },
)  # fmt: skip

"""Which resources exist: kind, group, version, scope, names and sub-resources, as discovery tells them.

`BUILTIN` is the catalogue of kinds the server knows without a CustomResourceDefinition. Custom resources become the
same `Resource` values, so nothing above this module asks where a resource came from.
"""

from __future__ import annotations

from dataclasses import dataclass

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
STATUS_VERBS = ("get", "patch", "update")
PROXY_VERBS = ("create", "delete", "get", "patch", "update")


@dataclass(frozen=True, slots=True)
class Subresource:
    name: str
    verbs: tuple[str, ...]
    kind: str = ""
    """Kind that is sent and answered, when it differs from the parent's."""
    group: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource in one version. Versions of one resource share a `key` and so their stored objects."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    singular: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    subresources: tuple[Subresource, ...] = ()
    list_name: str = ""
    """Kind of lists, when it is not the kind with "List" behind it."""
    storage: tuple[str, str] = ("", "")
    """(group, version) in which objects are stored; differs from (group, version) only for converted views."""
    custom: bool = False
    virtual: bool = False
    """Answered by a function instead of the store (access reviews, bindings)."""
    returns_deleted: bool = False
    """DELETE answers the object, as some kinds do in Kubernetes, instead of a Status."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def group_resource(self) -> str:
        """`deployments.apps`, `pods`: how messages name the resource."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def list_kind(self) -> str:
        return self.list_name or self.kind + "List"

    @property
    def storage_api_version(self) -> str:
        group, version = self.storage
        return f"{group}/{version}" if group else version

    @property
    def key(self) -> str:
        """Where objects live in the store, without trailing slash: `/registry/<group>/<plural>`."""
        return f"/registry/{self.storage[0] or 'core'}/{self.plural}"

    @property
    def schema_name(self) -> str:
        """`apps/v1/Deployment`, `v1/Pod`: how schemas are looked up."""
        return f"{self.api_version}/{self.kind}"

    def subresource(self, name: str) -> Subresource | None:
        for sub in self.subresources:
            if sub.name == name:
                return sub
        return None


STATUS = Subresource("status", STATUS_VERBS)
SCALE = Subresource("scale", STATUS_VERBS, "Scale", "autoscaling", "v1")


def _r(
    group: str,
    version: str,
    plural: str,
    kind: str,
    *,
    cluster: bool = False,
    short: str = "",
    categories: str = "",
    verbs: tuple[str, ...] = ALL_VERBS,
    subs: tuple[Subresource, ...] = (),
    storage: tuple[str, str] | None = None,
    virtual: bool = False,
    returns_deleted: bool = False,
) -> Resource:
    return Resource(
        group=group,
        version=version,
        plural=plural,
        kind=kind,
        namespaced=not cluster,
        singular=kind.lower(),
        short_names=tuple(short.split()),
        categories=tuple(categories.split()),
        verbs=verbs,
        subresources=subs,
        storage=storage or (group, version),
        virtual=virtual,
        returns_deleted=returns_deleted,
    )


_POD_SUBS = (
    Subresource("attach", ("create", "get"), "PodAttachOptions", "", "v1"),
    Subresource("binding", ("create",), "Binding", "", "v1"),
    Subresource("ephemeralcontainers", STATUS_VERBS),
    Subresource("eviction", ("create",), "Eviction", "policy", "v1"),
    Subresource("exec", ("create", "get"), "PodExecOptions", "", "v1"),
    Subresource("log", ("get",)),
    Subresource("portforward", ("create", "get"), "PodPortForwardOptions", "", "v1"),
    Subresource("proxy", PROXY_VERBS, "PodProxyOptions", "", "v1"),
    Subresource("resize", STATUS_VERBS),
    STATUS,
)
_CREATE = ("create",)
_READ = ("get", "list")
_RBAC = "rbac.authorization.k8s.io"
_AUTHZ = "authorization.k8s.io"
_AUTHN = "authentication.k8s.io"
_ADMISSION = "admissionregistration.k8s.io"
_FLOW = "flowcontrol.apiserver.k8s.io"

BUILTIN: tuple[Resource, ...] = (
    _r("", "v1", "bindings", "Binding", verbs=_CREATE, virtual=True),
    _r("", "v1", "componentstatuses", "ComponentStatus", cluster=True, short="cs", verbs=_READ, virtual=True),
    _r("", "v1", "configmaps", "ConfigMap", short="cm"),
    _r("", "v1", "endpoints", "Endpoints", short="ep"),
    _r("", "v1", "events", "Event", short="ev"),
    _r("", "v1", "limitranges", "LimitRange", short="limits"),
    _r(
        "", "v1", "namespaces", "Namespace", cluster=True, short="ns",
        verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
        subs=(Subresource("finalize", ("update",)), STATUS),
    ),
    _r("", "v1", "nodes", "Node", cluster=True, short="no",
       subs=(Subresource("proxy", PROXY_VERBS, "NodeProxyOptions", "", "v1"), STATUS)),
    _r(
        "", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", short="pvc", subs=(STATUS,), returns_deleted=True
    ),
    _r("", "v1", "persistentvolumes", "PersistentVolume", cluster=True, short="pv", subs=(STATUS,),
       returns_deleted=True),
    _r("", "v1", "pods", "Pod", short="po", categories="all", subs=_POD_SUBS, returns_deleted=True),
    _r("", "v1", "podtemplates", "PodTemplate", returns_deleted=True),
    _r("", "v1", "replicationcontrollers", "ReplicationController", short="rc", categories="all", subs=(SCALE, STATUS)),
    _r("", "v1", "resourcequotas", "ResourceQuota", short="quota", subs=(STATUS,), returns_deleted=True),
    _r("", "v1", "secrets", "Secret"),
    _r(
        "", "v1", "serviceaccounts", "ServiceAccount", short="sa", returns_deleted=True,
        subs=(Subresource("token", _CREATE, "TokenRequest", _AUTHN, "v1"),),
    ),
    _r("", "v1", "services", "Service", short="svc", categories="all", returns_deleted=True,
       subs=(Subresource("proxy", PROXY_VERBS, "ServiceProxyOptions", "", "v1"), STATUS)),
    _r(_ADMISSION, "v1", "mutatingadmissionpolicies", "MutatingAdmissionPolicy", cluster=True,
       categories="api-extensions"),
    _r(_ADMISSION, "v1", "mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding", cluster=True,
       categories="api-extensions"),
    _r(_ADMISSION, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", cluster=True,
       categories="api-extensions"),
    _r(_ADMISSION, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", cluster=True,
       categories="api-extensions", subs=(STATUS,)),
    _r(_ADMISSION, "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", cluster=True,
       categories="api-extensions"),
    _r(_ADMISSION, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", cluster=True,
       categories="api-extensions"),
    _r("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", cluster=True,
       short="crd crds", categories="api-extensions", subs=(STATUS,)),
    _r("apiregistration.k8s.io", "v1", "apiservices", "APIService", cluster=True, categories="api-extensions",
       subs=(STATUS,)),
    _r("apps", "v1", "controllerrevisions", "ControllerRevision"),
    _r("apps", "v1", "daemonsets", "DaemonSet", short="ds", categories="all", subs=(STATUS,)),
    _r("apps", "v1", "deployments", "Deployment", short="deploy", categories="all", subs=(SCALE, STATUS)),
    _r("apps", "v1", "replicasets", "ReplicaSet", short="rs", categories="all", subs=(SCALE, STATUS)),
    _r("apps", "v1", "statefulsets", "StatefulSet", short="sts", categories="all", subs=(SCALE, STATUS)),
    _r(_AUTHN, "v1", "selfsubjectreviews", "SelfSubjectReview", cluster=True, verbs=_CREATE, virtual=True),
    _r(_AUTHN, "v1", "tokenreviews", "TokenReview", cluster=True, verbs=_CREATE, virtual=True),
    _r(_AUTHN, "v1beta1", "selfsubjectreviews", "SelfSubjectReview", cluster=True, verbs=_CREATE, virtual=True),
    _r(_AUTHZ, "v1", "localsubjectaccessreviews", "LocalSubjectAccessReview", verbs=_CREATE, virtual=True),
    _r(_AUTHZ, "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", cluster=True, verbs=_CREATE, virtual=True),
    _r(_AUTHZ, "v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview", cluster=True, verbs=_CREATE, virtual=True),
    _r(_AUTHZ, "v1", "subjectaccessreviews", "SubjectAccessReview", cluster=True, verbs=_CREATE, virtual=True),
    _r("autoscaling", "v1", "horizontalpodautoscalers", "HorizontalPodAutoscaler", short="hpa", categories="all",
       subs=(STATUS,), storage=("autoscaling", "v2")),
    _r("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", short="hpa", categories="all",
       subs=(STATUS,)),
    _r("batch", "v1", "cronjobs", "CronJob", short="cj", categories="all", subs=(STATUS,)),
    _r("batch", "v1", "jobs", "Job", categories="all", subs=(STATUS,)),
    _r("certificates.k8s.io", "v1", "certificatesigningrequests", "CertificateSigningRequest", cluster=True, short="csr",
       subs=(Subresource("approval", STATUS_VERBS), STATUS)),
    _r("coordination.k8s.io", "v1", "leases", "Lease"),
    _r("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice"),
    _r("events.k8s.io", "v1", "events", "Event", short="ev", storage=("", "v1")),
    _r(_FLOW, "v1", "flowschemas", "FlowSchema", cluster=True, subs=(STATUS,)),
    _r(_FLOW, "v1", "prioritylevelconfigurations", "PriorityLevelConfiguration", cluster=True, subs=(STATUS,)),
    _r("networking.k8s.io", "v1", "ingressclasses", "IngressClass", cluster=True),
    _r("networking.k8s.io", "v1", "ingresses", "Ingress", short="ing", subs=(STATUS,)),
    _r("networking.k8s.io", "v1", "ipaddresses", "IPAddress", cluster=True, short="ip"),
    _r("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", short="netpol"),
    _r("networking.k8s.io", "v1", "servicecidrs", "ServiceCIDR", cluster=True, subs=(STATUS,)),
    _r("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", cluster=True),
    _r("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", short="pdb", subs=(STATUS,)),
    _r(_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", cluster=True),
    _r(_RBAC, "v1", "clusterroles", "ClusterRole", cluster=True),
    _r(_RBAC, "v1", "rolebindings", "RoleBinding"),
    _r(_RBAC, "v1", "roles", "Role"),
    _r("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", cluster=True, returns_deleted=True),
    _r("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", subs=(STATUS,), returns_deleted=True),
    _r("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", returns_deleted=True),
    _r("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", cluster=True, returns_deleted=True),
    _r("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", cluster=True, short="pc"),
    _r("storage.k8s.io", "v1", "csidrivers", "CSIDriver", cluster=True, returns_deleted=True),
    _r("storage.k8s.io", "v1", "csinodes", "CSINode", cluster=True, returns_deleted=True),
    _r("storage.k8s.io", "v1", "csistoragecapacities", "CSIStorageCapacity"),
    _r("storage.k8s.io", "v1", "storageclasses", "StorageClass", cluster=True, short="sc", returns_deleted=True),
    _r("storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment", cluster=True, subs=(STATUS,), returns_deleted=True),
    _r("storage.k8s.io", "v1", "volumeattributesclasses", "VolumeAttributesClass", cluster=True, short="vac",
       returns_deleted=True),
)  # fmt: skip

USAGE: tuple[Resource, ...] = (
    _r("metrics.k8s.io", "v1beta1", "nodes", "NodeMetrics", cluster=True, verbs=_READ, virtual=True),
    _r("metrics.k8s.io", "v1beta1", "pods", "PodMetrics", verbs=_READ, virtual=True),
)
"""What is used now, asked of the agents. Not among the built-in kinds: nothing is written or stored."""

CUSTOM_METRICS = _r("custom.metrics.k8s.io", "v1beta2", "pods", "MetricValueList", verbs=("get",), virtual=True)
"""Metrics that pods serve themselves. Not in discovery: a metric takes the place of a subresource there, and which ones there are
only the pods know."""

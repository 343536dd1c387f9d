"""The data catalogue: what a domain holds, where it lies, and who may use it. `kuscia.secretflow/v1alpha1`.

Fields that the schema requires have no default here, because defaults are not written. The settings of a data source are
encrypted for the domain; they print as stars all the same.
"""

from __future__ import annotations

import msgspec

from coterie.base.secret import STARS
from coterie.kube.api.meta import ApiObject, Model
from coterie.kube.api.types.kind import Kind
from coterie.kuscia.api.types.domain import kuscia_resource

DEFAULT_SOURCE = "default-data-source"
DEFAULT_MESH_SOURCE = "default-dp-data-source"
"""The same place; engines read and write there through the data mesh only."""
ENCRYPTED_INFO = "encryptedInfo"
DATA_TYPES = ("table", "model", "rule", "report", "serving_model", "read_data", "unknown")
"""Kuscia's five, and two more that SecretFlow writes."""
SOURCE_TYPES = ("localfs", "oss", "mysql", "odps", "postgresql", "hive", "dameng")
READY, UNAVAILABLE, UNKNOWN = "Ready", "Unavailable", "Unknown"
NORMAL, METADATA, FILE = "normal", "metadata", "file"


class DataColumn(Model, frozen=True, kw_only=True):
    name: str
    type: str
    comment: str = ""
    not_nullable: bool = False


class Partition(Model, frozen=True, kw_only=True):
    type: str
    fields: tuple[DataColumn, ...] | None = None


class DomainDataSpec(Model, frozen=True, kw_only=True):
    relative_uri: str = msgspec.field(name="relativeURI")
    author: str
    name: str
    type: str
    data_source: str
    attributes: dict[str, str] | None = None
    partitions: Partition | None = None
    columns: tuple[DataColumn, ...] | None = None
    vendor: str = ""
    file_format: str = ""


class DomainData(ApiObject, frozen=True, kw_only=True):
    spec: DomainDataSpec


class DomainDataSourceSpec(Model, frozen=True, kw_only=True):
    name: str
    type: str
    uri: str = ""
    data: dict[str, str] | None = None
    info_key: str = ""
    access_directly: bool = False

    def __repr__(self) -> str:
        return f"DomainDataSourceSpec({self.type} {self.uri}, data={STARS if self.data else None})"


class DomainDataSource(ApiObject, frozen=True, kw_only=True):
    spec: DomainDataSourceSpec


class GrantLimit(Model, frozen=True, kw_only=True):
    expiration_time: str | None = None
    use_count: int = 0
    grant_mode: tuple[str, ...] | None = None
    flow_id: str = msgspec.field(name="flowID", default="")
    components: tuple[str, ...] | None = None
    initiator: str = ""
    input_config: str = ""


class DomainDataGrantSpec(Model, frozen=True, kw_only=True):
    author: str
    domain_data_id: str = msgspec.field(name="domainDataID")
    grant_domain: str
    signature: str = ""
    limit: GrantLimit | None = None
    description: dict[str, str] | None = None


class UseRecord(Model, frozen=True, kw_only=True, rename=None):
    """Spelt with underscores, unlike all others."""

    use_time: str
    grant_domain: str
    component: str = ""
    output: str = ""


class DomainDataGrantStatus(Model, frozen=True, kw_only=True):
    phase: str
    message: str
    use_records: tuple[UseRecord, ...] | None = msgspec.field(name="use_records", default=None)


class DomainDataGrant(ApiObject, frozen=True, kw_only=True):
    spec: DomainDataGrantSpec
    status: DomainDataGrantStatus | None = None

    @property
    def limit(self) -> GrantLimit:
        return self.spec.limit or GrantLimit()

    @property
    def uses(self) -> tuple[UseRecord, ...]:
        return (self.status.use_records if self.status is not None else None) or ()


class DomainDataRecordSpec(Model, frozen=True, kw_only=True):
    domain_data_id: str = msgspec.field(name="domainDataID")
    location: tuple[str, ...]
    initiator: str
    """The domain that began the job."""
    job: str = ""
    flow: str = ""
    task: str = ""
    written_by: str = ""
    """The job whose engine wrote it through the data mesh."""
    fingerprint: str = ""


class DomainDataRecord(ApiObject, frozen=True, kw_only=True):
    """Who made what lies at a place. It outlives the DomainData: the file does too."""

    spec: DomainDataRecordSpec


DOMAIN_DATAS = Kind(kuscia_resource("domaindatas", "DomainData", namespaced=True), DomainData)
DOMAIN_DATA_SOURCES = Kind(kuscia_resource("domaindatasources", "DomainDataSource", namespaced=True), DomainDataSource)
DOMAIN_DATA_RECORDS = Kind(kuscia_resource("domaindatarecords", "DomainDataRecord", namespaced=True), DomainDataRecord)
DOMAIN_DATA_GRANTS = Kind(kuscia_resource("domaindatagrants", "DomainDataGrant", namespaced=True), DomainDataGrant)

"""Message classes of our `.proto` files, from the descriptor set that `make protos` compiled.

    files = ProtoFiles("kuscia/proto/api/v1alpha1/common.proto", "kuscia/proto/api/v1alpha1/kusciaapi/")
    Status = files.message("kuscia.proto.api.v1alpha1.Status")

Each `ProtoFiles` has a pool of its own: a client's generated modules of the same names may live in the same process.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_ALWAYS = "google/protobuf/any.proto"


class ProtoFiles:
    def __init__(self, *prefixes: str) -> None:
        """`prefixes`: files, by the beginning of their import names; those that they import must be among them."""
        self.pool = descriptor_pool.DescriptorPool()
        data = (resources.files("coterie.kuscia.api.definitions") / "descriptors.binpb").read_bytes()
        # Every file comes behind those that it imports.
        for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
            if file.name.startswith((_ALWAYS, *prefixes)):
                self.pool.AddSerializedFile(file.SerializeToString())

    def message(self, full_name: str) -> Any:
        """The class; KeyError when there is none."""
        return message_factory.GetMessageClass(self.pool.FindMessageTypeByName(full_name))

    def service(self, full_name: str) -> Any:
        """The descriptor of a service, with its methods; KeyError when there is none."""
        return self.pool.FindServiceByName(full_name)

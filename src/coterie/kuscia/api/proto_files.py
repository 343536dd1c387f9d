"""Message classes from `.proto` files, without a compiler, generated code or a step of the build.

    files = ProtoFiles()
    files.add("kuscia/proto/api/v1alpha1/common.proto", text)
    Status = files.message("kuscia.proto.api.v1alpha1.Status")

What is understood is what our own files use: proto3 with messages (also nested), enumerations, maps, `repeated`, `optional`,
`oneof`, imports and services. Everything else is refused with its line. The files may be given to any protobuf compiler too.

Each `ProtoFiles` has a pool of its own: a client's generated modules of the same names may live in the same process.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory

_TOKEN = re.compile(r"\s+|//[^\n]*|(\"[^\"]*\"|[A-Za-z_][\w.]*|\d+|[{}()<>=;,\[\]])")
_SCALARS = {
    name: getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{name.upper()}")
    for name in ("double", "float", "int32", "int64", "uint32", "uint64", "bool", "string", "bytes")
}
_FIELD: Any = descriptor_pb2.FieldDescriptorProto


class ProtoProblem(ValueError):
    """The text is not a `.proto` file that we understand."""


class ProtoFiles:
    def __init__(self) -> None:
        self.pool = descriptor_pool.DescriptorPool()
        self.pool.AddSerializedFile(any_pb2.DESCRIPTOR.serialized_pb)
        self._names: dict[str, int] = {"google.protobuf.Any": _FIELD.TYPE_MESSAGE}

    def add(self, name: str, text: str) -> None:
        """Files that it imports must have been added before."""
        made = _Reader(name, text, self._names).file()
        self.pool.AddSerializedFile(made.SerializeToString())

    def message(self, full_name: str) -> Any:
        """The class; KeyError when there is none."""
        return message_factory.GetMessageClass(self.pool.FindMessageTypeByName(full_name))

    def service(self, full_name: str) -> Any:
        """The descriptor of a service, with its methods; KeyError when there is none."""
        return self.pool.FindServiceByName(full_name)


class _Reader:
    """One file. Names are looked up when all of the file was read, innermost first, as protobuf does."""

    def __init__(self, name: str, text: str, names: dict[str, int]) -> None:
        self._file = descriptor_pb2.FileDescriptorProto(name=name, syntax="proto3")
        self._tokens = _tokens(name, text)
        self._names = names
        self._open: list[tuple[Any, str, str]] = []
        """(what has the reference, the attribute, the name around it)"""

    def file(self) -> Any:
        while self._tokens:
            word = self._take()
            if word == "syntax":
                self._expect("=", '"proto3"', ";")
            elif word == "package":
                self._file.package = self._statement()
            elif word == "import":
                self._file.dependency.append(self._statement().strip('"'))
            elif word == "message":
                self._message(self._file.message_type.add(), self._file.package)
            elif word == "enum":
                self._enum(self._file.enum_type.add(), self._file.package)
            elif word == "service":
                self._service(self._file.service.add())
            else:
                raise self._problem(word)
        for holder, attribute, around in self._open:
            self._resolve(holder, attribute, around)
        return self._file

    # Statements.

    def _message(self, made: Any, around: str) -> None:
        made.name = self._take()
        full = f"{around}.{made.name}"
        self._names[full] = _FIELD.TYPE_MESSAGE
        self._expect("{")
        optional: list[Any] = []
        while (word := self._take()) != "}":
            if word == "message":
                self._message(made.nested_type.add(), full)
            elif word == "enum":
                self._enum(made.enum_type.add(), full)
            elif word == "oneof":
                made.oneof_decl.add(name=self._take())
                self._expect("{")
                while (kind := self._take()) != "}":
                    self._field(made, full, kind).oneof_index = len(made.oneof_decl) - 1
            elif word == "map":
                self._map(made, full)
            elif word == "repeated":
                self._field(made, full, self._take()).label = _FIELD.LABEL_REPEATED
            elif word == "optional":
                optional.append(self._field(made, full, self._take()))
            else:
                self._field(made, full, word)
        for field in optional:
            # Protobuf keeps whether it was given as a choice of its own, behind all that are written.
            field.proto3_optional, field.oneof_index = True, len(made.oneof_decl)
            made.oneof_decl.add(name=f"_{field.name}")

    def _field(self, made: Any, full: str, kind: str) -> Any:
        field = made.field.add(name=self._take(), label=_FIELD.LABEL_OPTIONAL)
        self._expect("=")
        field.number = int(self._take())
        self._expect(";")
        self._typed(field, kind, full)
        return field

    def _map(self, made: Any, full: str) -> None:
        self._expect("<")
        key = self._take()
        self._expect(",")
        value = self._take()
        self._expect(">")
        field = self._field(made, full, "bytes")
        entry = made.nested_type.add(name="".join(part.title() for part in field.name.split("_")) + "Entry")
        entry.options.map_entry = True
        for number, (name, kind) in enumerate((("key", key), ("value", value)), 1):
            part = entry.field.add(name=name, number=number, label=_FIELD.LABEL_OPTIONAL)
            self._typed(part, kind, full)
        field.label, field.type, field.type_name = (
            _FIELD.LABEL_REPEATED,
            _FIELD.TYPE_MESSAGE,
            f".{full}.{entry.name}",
        )

    def _typed(self, field: Any, kind: str, around: str) -> None:
        if kind in _SCALARS:
            field.type = _SCALARS[kind]
        else:
            field.type_name = kind
            self._open.append((field, "type_name", around))

    def _enum(self, made: Any, around: str) -> None:
        made.name = self._take()
        self._names[f"{around}.{made.name}"] = _FIELD.TYPE_ENUM
        self._expect("{")
        while (word := self._take()) != "}":
            self._expect("=")
            made.value.add(name=word, number=int(self._take()))
            self._expect(";")

    def _service(self, made: Any) -> None:
        made.name = self._take()
        self._expect("{")
        while (word := self._take()) != "}":
            if word != "rpc":
                raise self._problem(word)
            method = made.method.add(name=self._take())
            method.input_type, method.client_streaming = self._argument()
            self._expect("returns")
            method.output_type, method.server_streaming = self._argument()
            self._expect(";")
            for attribute in ("input_type", "output_type"):
                self._open.append((method, attribute, self._file.package))

    def _argument(self) -> tuple[str, bool]:
        self._expect("(")
        word = self._take()
        streams = word == "stream"
        name = self._take() if streams else word
        self._expect(")")
        return name, streams

    # Names and words.

    def _resolve(self, holder: Any, attribute: str, around: str) -> None:
        name, scope = getattr(holder, attribute), around
        while True:
            full = f"{scope}.{name}" if scope else name
            if full in self._names:
                setattr(holder, attribute, f".{full}")
                if attribute == "type_name":
                    holder.type = self._names[full]
                return
            if not scope:
                raise ProtoProblem(f"{self._file.name}: there is no {name}")
            scope = scope.rpartition(".")[0]

    def _statement(self) -> str:
        word = self._take()
        self._expect(";")
        return word

    def _expect(self, *words: str) -> None:
        for word in words:
            found = self._take()
            if found != word:
                raise self._problem(found, word)

    def _take(self) -> str:
        if not self._tokens:
            raise ProtoProblem(f"{self._file.name}: ends too early")
        return self._tokens.pop()

    def _problem(self, found: str, wanted: str = "") -> ProtoProblem:
        return ProtoProblem(f"{self._file.name}: {found!r}" + (f" in place of {wanted!r}" if wanted else " is unknown"))


def _tokens(name: str, text: str) -> list[str]:
    """In reverse, so that taking one is cheap."""
    out, at = [], 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ProtoProblem(f"{name}: line {text.count(chr(10), 0, at) + 1} is not understood")
        at = found.end()
        if found[1]:
            out.append(found[1])
    return out[::-1]

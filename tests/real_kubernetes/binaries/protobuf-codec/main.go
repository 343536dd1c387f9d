// protobuf-codec converts objects between JSON and Kubernetes' protobuf with Kubernetes' own types.
//
// Reads lines from standard input. "encode" reads JSON and writes base64 of the protobuf envelope,
// "decode" reads base64 and writes JSON. A line that cannot be converted is answered "error: ...".
// "fields" writes the rows of src/coterie/kube/api/wire/messages.tsv; arguments name further group-versions.
package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"fmt"
	"os"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

func main() {
	types := scheme.Scheme
	for _, add := range []func(*runtime.Scheme) error{apiextensions.AddToScheme, apiregistration.AddToScheme} {
		if err := add(types); err != nil {
			panic(err)
		}
	}
	metav1.AddToGroupVersion(types, schema.GroupVersion{Version: "v1"})
	if os.Args[1] == "fields" {
		for _, row := range fieldRows(types, os.Args[2:]) {
			fmt.Println(row)
		}
		return
	}
	fromJSON := jsonserializer.NewSerializerWithOptions(
		jsonserializer.DefaultMetaFactory, types, types, jsonserializer.SerializerOptions{Strict: true})
	fromProtobuf := protobuf.NewSerializer(types, types)

	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 1<<20), 1<<28)
	out := bufio.NewWriter(os.Stdout)
	for lines.Scan() {
		answer, err := convert(lines.Bytes(), os.Args[1] == "encode", fromJSON, fromProtobuf)
		if err != nil {
			answer = []byte(fmt.Sprintf("error: %q", err.Error()))
		}
		out.Write(answer)
		out.WriteByte('\n')
		out.Flush()
	}
}

func convert(line []byte, encode bool, fromJSON, fromProtobuf runtime.Serializer) ([]byte, error) {
	buffer := &bytes.Buffer{}
	if encode {
		object, _, err := fromJSON.Decode(line, nil, nil)
		if err != nil {
			return nil, err
		}
		if err := fromProtobuf.Encode(object, buffer); err != nil {
			return nil, err
		}
		return []byte(base64.StdEncoding.EncodeToString(buffer.Bytes())), nil
	}
	data, err := base64.StdEncoding.DecodeString(string(line))
	if err != nil {
		return nil, err
	}
	object, kind, err := fromProtobuf.Decode(data, nil, nil)
	if err != nil {
		return nil, err
	}
	object.GetObjectKind().SetGroupVersionKind(*kind)
	if err := fromJSON.Encode(object, buffer); err != nil {
		return nil, err
	}
	return bytes.TrimSpace(buffer.Bytes()), nil
}

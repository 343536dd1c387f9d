package main

import (
	"fmt"
	"reflect"
	"regexp"
	"sort"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
)

// Messages whose Go struct is not what they look like on the wire; their rows are written by hand.
var byHand = map[string]bool{
	"api.resource.Quantity": true, "meta.v1.FieldsV1": true, "meta.v1.MicroTime": true, "meta.v1.Time": true,
	"meta.v1.Duration": true, "runtime.RawExtension": true, "util.intstr.IntOrString": true,
	"apiextensions.v1.JSON": true,
}

var stable = regexp.MustCompile(`^(v[0-9]+|__internal)$`)

// fieldRows are the rows of messages.tsv for all kinds of stable versions in a scheme, and what they refer to.
func fieldRows(types *runtime.Scheme, also []string) []string {
	wanted := map[string]bool{}
	for _, version := range also {
		wanted[version] = true
	}
	seen := map[reflect.Type]bool{}
	rows := map[string][]string{}
	for kind, goType := range types.AllKnownTypes() {
		if kind.Version == "__internal" || !(stable.MatchString(kind.Version) || wanted[kind.GroupVersion().String()]) {
			continue
		}
		walk(goType, seen, rows)
	}
	names := make([]string, 0, len(rows))
	for name := range rows {
		names = append(names, name)
	}
	sort.Strings(names)
	var out []string
	for _, name := range names {
		out = append(out, rows[name]...)
	}
	return out
}

func messageName(t reflect.Type) string {
	path := strings.Split(t.PkgPath(), "/")
	last, before := path[len(path)-1], path[len(path)-2]
	if last == "runtime" {
		return "runtime." + t.Name()
	}
	return before + "." + last + "." + t.Name()
}

func walk(t reflect.Type, seen map[reflect.Type]bool, rows map[string][]string) {
	if seen[t] {
		return
	}
	seen[t] = true
	name := messageName(t)
	if byHand[name] || t.Kind() != reflect.Struct {
		return
	}
	numbered := map[int]string{}
	for i := 0; i < t.NumField(); i++ {
		field := t.Field(i)
		parts := strings.Split(field.Tag.Get("protobuf"), ",")
		if len(parts) < 3 {
			continue
		}
		var number int
		fmt.Sscan(parts[1], &number)
		json := strings.Split(field.Tag.Get("json"), ",")
		jsonName := json[0]
		omit := strings.Contains(field.Tag.Get("json"), ",omitempty")
		goType, pointer := field.Type, false
		if goType.Kind() == reflect.Pointer {
			goType, pointer = goType.Elem(), true
		}
		shape, keep := "one", pointer || !omit
		isMap, typeName := goType.Kind() == reflect.Map, ""
		switch {
		case jsonName == "" && field.Anonymous || strings.Contains(field.Tag.Get("json"), ",inline"):
			shape, jsonName, keep = "inline", lowered(field.Name), true
		case isMap:
			shape = fmt.Sprintf("map<string,%s>", scalar(goType.Elem(), seen, rows))
			keep = false
		case goType.Kind() == reflect.Slice && goType.Elem().Kind() != reflect.Uint8 && !isMessage(goType):
			shape, keep = "list", !omit
			goType = goType.Elem()
			if goType.Kind() == reflect.Pointer {
				goType = goType.Elem()
			}
		}
		if jsonName == "" {
			jsonName = lowered(field.Name)
		}
		if !isMap {
			typeName = scalar(goType, seen, rows)
		}
		keptAs := "0"
		if keep {
			keptAs = "1"
		}
		numbered[number] = strings.Join([]string{name, parts[1], jsonName, typeName, shape, keptAs}, "\t")
	}
	numbers := make([]int, 0, len(numbered))
	for number := range numbered {
		numbers = append(numbers, number)
	}
	sort.Ints(numbers)
	for _, number := range numbers {
		rows[name] = append(rows[name], numbered[number])
	}
}

func lowered(name string) string {
	return strings.ToLower(name[:1]) + name[1:]
}

// isMessage tells the named slices that are messages of their own (ExtraValue, Verbs) from plain lists.
func isMessage(t reflect.Type) bool {
	_, ok := reflect.PointerTo(t).MethodByName("MarshalToSizedBuffer")
	return ok
}

func scalar(t reflect.Type, seen map[reflect.Type]bool, rows map[string][]string) string {
	if isMessage(t) || t.Kind() == reflect.Struct {
		walk(t, seen, rows)
		if t.Kind() == reflect.Slice {
			rows[messageName(t)] = []string{messageName(t) + "\t1\titems\tstring\tlist\t0"}
		}
		return messageName(t)
	}
	switch t.Kind() {
	case reflect.Bool:
		return "bool"
	case reflect.Int32:
		return "int32"
	case reflect.Int64, reflect.Int, reflect.Uint32, reflect.Uint64:
		return "int64"
	case reflect.Float64, reflect.Float32:
		return "double"
	case reflect.Slice:
		return "bytes"
	}
	return "string"
}

"""Who owns which field: `metadata.managedFields` and server-side apply.

    fieldset.py    sets of fields in their wire form (FieldsV1): union, difference, intersection, printed paths
    layout.py      a schema, compiled to what ownership asks of it: what is a leaf, how list items are named
    collect.py     all fields of a value (of a created object, of an applied configuration)
    diff.py        fields that differ between two values; only differing branches are walked
    entries.py     the list managedFields: identity, order, cap, reset, validation
    ownership.py   what a create, update or patch does to managedFields
    merge.py       an applied configuration laid over the live value
    removal.py     removes what a manager stopped applying and nobody else owns
    conflicts.py   the refusal when other managers own what an apply changes
    lastapplied.py moves objects of `kubectl apply` (client side) to server-side apply without conflicts
    apply.py       server-side apply, from those parts

Everything is a pure function over plain JSON data. Results share unchanged parts with their inputs, and sets of
created fields even with each other: nobody may change an object in place.
"""

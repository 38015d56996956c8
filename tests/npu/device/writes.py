"""What the operators of torch_npu write, as far as their schemas tell: nobody who gets a cache is forgotten."""

import re

import torch
import torch_npu  # noqa: F401 - registers the operators

from graphspec.recording import writes

#: They read the caches that they get.
READING = re.compile(r"attention|_functional|cache_load|gather_pa_kv")


def operators():
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, name = schema.name.partition("::")
        if namespace in {"npu", "atb"}:
            yield schema.name, getattr(getattr(getattr(torch.ops, namespace), name), schema.overload_name or "default")


def targets(op):
    """The names of what may be written, whatever the call."""
    return set(writes.effect_of(op).targets((), {it.name: it.name for it in op._schema.arguments}))


def test_every_operator_that_is_listed_exists_with_the_arguments_listed():
    known = dict(operators())
    listed = {name: names for name, (names, _) in writes._UNSAID.items() if not name.startswith("aten::")}
    assert {name for name, names in listed.items() if not set(names) <= targets(known[name])} == set()


def test_every_operator_that_gets_a_cache_writes_it_or_is_known_to_read_it():
    for name, op in operators():
        caches = {it.name for it in op._schema.arguments if it.name.endswith("_cache") and "cos_sin" not in it.name}
        assert caches <= targets(op) or READING.search(name), name


def test_every_out_form_writes_its_results():
    found = [(name, op) for name, op in operators() if any(it.name == "out" for it in op._schema.arguments)]
    assert len(found) >= 20
    silent = {name for name, op in found if "out" not in targets(op)}
    assert {name for name in silent if not name.endswith(("_grad", "_backward"))} == set()


def test_every_operator_named_in_place_writes_something():
    silent = {name for name, op in operators() if name.endswith("_") and not name.endswith("__") and not targets(op)}
    assert silent == set()


def test_every_operator_with_a_functional_twin_writes_what_the_twin_returns():
    known = dict(operators())
    twins = {name: known[name.removesuffix("_functional")] for name in known if name.endswith("_functional")}
    assert len(twins) >= 5
    for name, op in twins.items():
        assert targets(known[name]) == set(), name
        assert targets(op), name


def test_results_of_the_fused_attention_given_by_the_caller_are_written():
    op = torch.ops.npu.npu_fused_infer_attention_score.out
    out = [torch.empty(1), torch.empty(1)]
    assert writes.effect_of(op).written((), {"out": out}) == (out,)

"""What `check` finds on fake tensors, and what it must not find."""

import pytest
import torch

from graphspec.errors import ModelError
from graphspec.loading import inspect, load
from graphspec.runtime.check import check_spec

HEADER = """
import random
import numpy as np
import torch
from torch import nn

OFFSET = torch.ones(4)

@torch.library.custom_op("check_tests::bare", mutates_args=())
def bare(x: torch.Tensor) -> torch.Tensor:
    return x.clone()

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.register_buffer("kept", torch.ones(4))
        self.number = torch.tensor(2.0)
        self.array_number = np.float32(2.0)
        self.lengths = torch.tensor([1.0, 2.0, 3.0, 4.0])
        self.position = 0
        self.cache = None

    def forward(self, x{params}):
{body}

def build():
    return {build}
"""

SPEC = """
graphspec: 1
name: t
model: {{factory: "model.py:build"{model}}}
dims: {{batch: {sizes}}}
{top}
buffers:
  x: {{shape: [batch, 4], dtype: float32}}
  y: {{role: output, shape: [batch, 4], dtype: float32}}
{buffers}
regions:
  r: {{call: {call}, inputs: {inputs}, outputs: {outputs}{region}}}
{regions}
replay: {replay}
"""

SPEC_DEFAULTS = {
    "model": "", "sizes": "[1, 2, 4]", "top": "", "buffers": "", "call": "model", "inputs": "[x]", "outputs": "y",
    "region": "", "regions": "", "replay": "[r]",
}  # fmt: skip


@pytest.fixture
def check(tmp_path):
    def run(body, device="npu", *, params="", build="Model()", **spec):
        lines = "\n".join(f"        {line}" for line in body.split("\n"))
        (tmp_path / "model.py").write_text(
            HEADER.replace("{body}", lines).replace("{params}", params).replace("{build}", build)
        )
        (tmp_path / "spec.yaml").write_text(SPEC.format(**SPEC_DEFAULTS | spec))
        return check_spec(load(tmp_path / "spec.yaml"), device)

    return run


def codes(report):
    return [finding.code for finding in report.findings]


def only(report):
    (finding,) = report.findings
    return finding


# -- tensors of the host


def test_what_moves_with_the_model_or_is_made_on_the_device_is_no_finding(check):
    body = (
        "x = self.lin(x) + self.kept + torch.tensor(3.0) + 2\n"
        "x = x + torch.zeros(4, device=x.device) + torch.zeros_like(x) + x.new_ones(4)\n"
        "return x + torch.arange(4, device=self.kept.device).to(x)"
    )
    for device in ("npu", "cuda", "cpu", "auto"):
        assert check(body, device).findings == []


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("return x + self.number", "model.number"),
        ("return x + self.array_number", "model.array_number"),
        ("return x * self.lengths", "model.lengths"),
        ("return x + self.lengths[0]", "model.lengths"),
        ("return x + self.lengths.sum()", "model.lengths"),
        ("return x + self.lengths.to(x.device)", "model.lengths"),
        ("return x[self.lengths.long() - 1]", "model.lengths"),
        ("return x + OFFSET", "model.py:OFFSET"),
    ],
)
def test_a_tensor_of_the_host_is_refused_by_the_name_of_what_holds_it(check, body, name):
    sizes = "4"
    finding = only(check(body, "npu", sizes=sizes))
    assert (finding.code, finding.severity) == ("GS746", "error")
    assert f" {name}, a " in finding.message
    assert "npu" in finding.message
    assert "register_buffer" in finding.hint
    assert "input" in finding.hint
    assert finding.file.endswith("model.py")
    assert codes(check(body, "cpu", sizes=sizes)) == []
    assert [each.severity for each in check(body, "auto", sizes=sizes).findings] == ["warning"]


def test_two_tensors_of_the_host_on_one_line_are_two_findings(check):
    found = check("return x + self.number + self.lengths").findings
    assert [name in each.message for each, name in zip(found, ("number", "lengths"), strict=True)] == [True, True]


def test_a_tensor_made_without_a_device_inside_the_region_is_refused_by_its_line(check):
    finding = only(check("ones = torch.zeros(4)\nreturn x + ones"))
    assert finding.code == "GS746"
    assert "made on cpu at model.py:" in finding.message
    assert "device=x.device" in finding.hint


def test_a_number_the_region_makes_itself_is_taken_by_every_operator(check):
    assert codes(check("return x + torch.zeros(()) + torch.ones(4, device='cpu').sum()")) == []


@pytest.mark.parametrize(
    "build",
    ["Model().to('cuda')", "Model().cuda()", "Model().to(torch.device('npu:0'))", "Model().to(device='npu')"],
)
def test_a_factory_may_move_its_model_to_a_device_that_is_not_here(check, build):
    assert codes(check("return self.lin(x)", build=build)) == []


@pytest.mark.parametrize(
    ("made", "device"),
    [
        ("torch.ones(4).to(model.lin.weight.device)", False),  # nothing has been moved yet: that is the CPU
        ("torch.ones(4, device=model.lin.weight.device)", False),
        ("torch.ones(4, device=torch.device('cpu'))", False),
        ("torch.ones(4, device='npu')", True),
        ("torch.ones(4).to('npu:0')", True),
        ("torch.ones(4).cuda()", True),
    ],
)
def test_what_a_factory_makes_on_its_device_is_on_the_host_until_it_is_moved_by_name(check, made, device):
    build = f"give(Model())\n\ndef give(model):\n    model.offset = {made}\n    return model"
    found = check("return x + self.offset", build=build).findings
    assert [each.code for each in found] == ([] if device else ["GS746"])
    assert device or "model.offset" in found[0].message


def test_a_device_that_a_block_of_the_factory_sets_is_the_host_too(check):
    build = (
        "give()\n\ndef give():\n    with torch.device('cpu'):\n        model = Model()\n"
        "        model.offset = torch.ones(4)\n    return model"
    )
    assert codes(check("return x + self.offset", build=build)) == ["GS746"]


def test_the_text_cpu_is_the_host_unless_the_factory_asked_what_there_is(check):
    build = (
        "give(Model())\n\n"
        "def give(model):\n    DEVICE\n    model.offset = torch.ones(4, device=device)\n    return model"
    )
    body = "return x + self.offset"
    assert codes(check(body, build=build.replace("DEVICE", "device = 'cpu'"))) == ["GS746"]
    asked = "device = 'cuda' if torch.cuda.is_available() else 'cpu'"
    assert codes(check(body, build=build.replace("DEVICE", asked))) == []


# -- hazards, results and Python state


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("return x * 2 if (x > 0).all() else x * 10", "GS701"),
        ("x.sum().item()\nreturn x", "GS701"),
        ("x.tolist()\nreturn x", "GS701"),
        ("x.numpy()\nreturn x", "GS701"),
        ("return x[x > 0]", "GS702"),
        ("return x + torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)", "GS703"),
        ("self.position += 1\nreturn x + 1", "GS725"),
        ("return x + random.random()", "GS727"),
        ("x.add_(1)\nreturn x * 1", "GS724"),
        ("return x.double()", "GS742"),
        ("return x[:, :2]", "GS742"),
        ("return None", "GS742"),
    ],
)
def test_a_hazard_is_found_on_fake_tensors(check, body, code):
    report = check(body)
    assert code in codes(report)
    assert any(each.severity == "error" for each in report.findings)


def test_a_hazard_names_the_line_of_the_model(check):
    finding = only(check("y = x + 1\nreturn y if y.sum() > 0 else x"))
    assert (finding.file.rpartition("/")[2], finding.line) == ("model.py", 26)


def test_a_rebound_attribute_is_a_warning(check):
    finding = only(check("self.last = x * 3\nreturn x + 1"))
    assert (finding.code, finding.severity) == ("GS745", "warning")
    assert "model.last" in finding.message


def test_what_a_warm_up_creates_is_no_finding(check):
    body = (
        "if self.cache is None:\n    self.cache = torch.zeros(4, device=x.device)\n"
        "self.cache.add_(1)\nreturn x + self.cache"
    )
    assert codes(check(body)) == []


def test_the_models_own_exception_is_a_finding_at_its_line(check):
    finding = only(check("y = x + 1\nreturn y @ torch.zeros(5, 5, device=x.device)"))
    assert finding.code == "GS741"
    assert finding.line == 26
    assert "RuntimeError" in finding.message
    assert "batch=4" in finding.message


def test_what_fails_in_the_smallest_bucket_only_is_found_too(check):
    finding = only(check("assert x.shape[0] != 1, 'one row'\nreturn x + 1"))
    assert finding.code == "GS741"
    assert "batch=1" in finding.message


def test_a_call_path_that_leads_nowhere_is_a_finding_at_the_path(check):
    finding = only(check("return x", call="model.forwards"))
    assert finding.code == "GS740"
    assert finding.file.endswith("spec.yaml")
    assert finding.path == ("regions", "r", "call")
    assert "forward" in finding.hint


def test_an_output_path_that_leads_nowhere_is_a_finding(check):
    finding = only(check("return {'z': x}", outputs="{y: logits}"))
    assert finding.code == "GS742"
    assert "'z'" in finding.message


def test_a_state_pattern_without_a_tensor_is_a_finding(check):
    finding = only(check("return x + 1", buffers='  s: {role: state, attr: "model.nothing"}'))
    assert (finding.code, finding.path) == ("GS740", ("buffers", "s", "attr"))


@pytest.mark.parametrize("path", ["model.lin", "model.nothing"])
def test_a_generator_that_is_none_is_a_finding(check, path):
    finding = only(check("return x + 1", region=f", generators: [{path}]"))
    assert finding.code == "GS740"
    assert path in finding.message


def test_a_region_that_has_nothing_to_replay_is_a_finding(check):
    report = check("return 3", outputs="n", replay="[r, q]", regions="  q: {call: model.lin, inputs: [x], outputs: y}")
    assert codes(report) == ["GS748"]


def test_findings_of_two_regions_come_at_once(check):
    report = check("return x.double()", regions="  q: {call: model.nope, inputs: [x], outputs: z}", replay="[r, q]",
                   buffers="  z: {role: output, shape: [batch, 4], dtype: float32}")  # fmt: skip
    assert sorted(codes(report)) == ["GS740", "GS742"]


def test_hooks_are_refused_unless_they_are_allowed(check):
    build = "hooked(Model())\n\ndef hooked(model):\n    model.lin.register_forward_hook(print)\n    return model"
    assert codes(check("return x + 1", build=build)) == ["GS712"]
    assert codes(check("return x + 1", build=build, region=", hooks: allow")) == []


# -- params and updates

SCALE = {"params": ", s", "inputs": "[x, s]", "top": "params: {s: {type: float, default: 0.5}}"}


def test_an_update_of_what_is_called_is_no_finding_on_the_cpu(check):
    update = ', updates: [{op: "aten::mul", arg: other, from: s}]'
    assert codes(check("return x * s", "cpu", **SCALE, region=update)) == []


def test_an_update_that_the_device_cannot_make_is_a_finding(check):
    update = ', updates: [{op: "aten::mul", arg: other, from: s}]'
    for device in ("npu", "cuda"):
        finding = only(check("return x * s", device, **SCALE, region=update))
        assert finding.code == "GS510"
        assert "specialize" in finding.hint


def test_an_update_of_an_operator_that_is_never_called_lists_those_that_are(check):
    update = ', updates: [{op: "aten::mull", arg: other, from: s}]'
    found = check("return x * s", "cpu", **SCALE, region=update).findings
    assert [each.code for each in found] == ["GS511", "GS510"]
    assert "aten::mul" in found[1].hint


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("return x * s", "GS511"),
        ("return x * s**2", "GS722"),
        ("return x * 2 if s > 1 else x * 10", "GS512"),
    ],
)
def test_a_param_that_a_graph_would_freeze_is_one_finding(check, body, code):
    assert codes(check(body, "cpu", **SCALE)) == [code]


def test_a_specialized_param_may_be_used_in_any_way(check):
    special = SCALE | {"top": "params: {s: {type: float, default: 0.5, specialize: true}}"}
    assert codes(check("return x * 2 if s > 1 else x * s**2", **special)) == []


# -- padded rows


@pytest.mark.parametrize(
    "body",
    [
        "return x - x.mean(0)",
        "return x - x.mean()",
        "return x.softmax(0)",
        "return x.cumsum(0)",
        "return x.flip(0)",
        "return x.sort(dim=0).values",
        "return x @ (x.t() @ x)",
        "return (x - x.mean(0)) / x.std(0)",
        "return x.reshape(-1).softmax(0).reshape(x.shape)",
        "h = x.unsqueeze(1)\nreturn (h.transpose(0, 1).softmax(1)).transpose(0, 1).squeeze(1)",
        "return torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None])[0]",
    ],
)
def test_an_operator_that_works_across_padded_rows_is_a_warning_with_its_line(check, body):
    finding = check(body).findings[0]
    assert (finding.code, finding.severity) == ("GS747", "warning")
    assert "'batch'" in finding.message
    assert "aten::" in finding.message
    assert finding.line is not None


@pytest.mark.parametrize(
    "body",
    [
        "return self.lin(x).softmax(1)",
        "return x - x.mean(1, keepdim=True)",
        "return torch.nn.functional.layer_norm(x, (4,))",
        "h = x.view(-1, 2, 2)\nreturn torch.nn.functional.scaled_dot_product_attention(h, h, h).reshape(x.shape)",
        "return (x.unsqueeze(1) @ x.unsqueeze(2) * x.unsqueeze(1)).squeeze(1)",
        "rows = torch.arange(x.shape[0], device=x.device)\nreturn x[torch.argsort(rows)]",
    ],
)
def test_an_operator_that_works_within_a_row_is_no_finding(check, body):
    assert codes(check(body)) == []


def test_a_mask_made_from_the_real_size_keeps_padded_rows_out(check):
    body = (
        "real = (torch.arange(x.shape[0], device=x.device) < n).unsqueeze(1)\n"
        "mean = (x * real).sum(0) / real.sum()\n"
        "weights = x.masked_fill(~real, float('-inf')).softmax(0)\n"
        "return x - mean - weights"
    )
    buffers = "  n: {shape: [1], dtype: int64, from: {size: batch}}"
    assert codes(check(body, params=", n", inputs="[x, n]", buffers=buffers)) == []


def test_an_exact_dim_has_no_padded_rows(check):
    assert codes(check("return x - x.mean(0)", sizes="{sizes: [2, 4], exact: true}")) == []


def test_a_single_bucket_has_padded_rows_too(check):
    assert codes(check("return x - x.mean(0)", sizes="[4]")) == ["GS747"]


# -- what fake tensors cannot do


def test_a_missing_fake_kernel_is_a_warning_and_ends_the_trace_of_its_region_only(check):
    report = check(
        "y = bare(x)\nreturn y if y.sum() > 0 else x",
        regions="  q: {call: model.lin, inputs: [y], outputs: z}",
        buffers="  z: {role: output, shape: [batch, 4], dtype: float32}",
        replay="[r, q]",
    )
    kernel, finding = report.findings
    assert (kernel.code, kernel.line) == ("GS715", finding.line)
    assert (finding.code, finding.severity, finding.line) == ("GS743", "warning", 25)
    assert "check_tests::bare" in finding.message
    assert "register_fake" in finding.hint
    assert [(region.name, region.ended) for region in report.regions] == [("r", True), ("q", False)]


EAGER = {
    "region": ", eager: true",
    "outputs": "h",
    "replay": "[r, q]",
    "regions": "  q: {call: model.lin, inputs: [h], outputs: y}",
}


def test_an_eager_region_may_do_what_it_likes_if_it_works_on_fake_tensors(check):
    assert codes(check("self.position += 1\nreturn x * random.random() + self.lengths", **EAGER)) == []


def test_an_eager_region_that_needs_values_uses_its_declared_outputs(check):
    declared = "  h: {role: output, shape: [batch, 4], dtype: float32}"
    report = check("return torch.tensor(x.tolist())", **EAGER, buffers=declared)
    assert [(each.code, each.severity) for each in report.findings] == [("GS744", "warning")]
    assert report.regions[1].outputs[0].shape == (4, 4)


def test_undeclared_outputs_of_an_eager_region_that_needs_values_are_named(check):
    report = check("return torch.tensor(x.tolist())", **EAGER)
    assert codes(report) == ["GS744", "GS744"]
    assert "'h'" in report.findings[0].message
    assert "'q' was not traced" in report.findings[1].message


def test_a_factory_may_compute_with_numbers_and_initialise_as_it_likes(check):
    build = (
        "made(Model())\n\n"
        "def made(model):\n"
        "    model.rates = [rate.item() for rate in torch.linspace(0, 0.5, 3)] + torch.arange(4).tolist()\n"
        "    model.steps = int(torch.tensor([1, 2]).sum() + 1)\n"
        "    nn.init.trunc_normal_(model.lin.weight)\n"
        "    nn.init.orthogonal_(model.lin.weight)\n"
        "    return model"
    )
    report = check("assert self.rates == [0, 0.25, 0.5, 0, 1, 2, 3] and self.steps == 4\nreturn x + 1", build=build)
    assert report.findings == []
    assert torch.nn.init.ones_(torch.zeros(1)).item() == 1


def test_a_factory_that_reads_a_parameter_is_said_to_with_its_line(check):
    build = (
        "made(Model())\n\n"
        "def made(model):\n    model.scale = model.lin.weight.detach().abs().max().item()\n    return model"
    )
    with pytest.raises(ModelError, match=r"reads the value of a tensor.*model\.py:\d+"):
        check("return x", build=build)


def test_a_failing_factory_raises_with_the_users_own_exception(check):
    with pytest.raises(ModelError) as caught:
        check("return x", build="Model()[0]")
    assert isinstance(caught.value.__cause__, TypeError)


def test_no_weights_are_read_and_no_random_stream_moves(check, tmp_path):
    (tmp_path / "w.safetensors").write_bytes(b"no weights at all")
    before = torch.get_rng_state()
    assert codes(check("return self.lin(x)", model=", weights: w.safetensors")) == []
    assert torch.equal(torch.get_rng_state(), before)


def test_more_graphs_than_the_device_has_streams_are_a_finding_for_that_device(check, tmp_path):
    check("return x + 1", "cuda", sizes="{from: 1, to: 3000}", top="capture: {max_graphs: 4000}")
    found = {device: inspect(tmp_path / "spec.yaml", device)[1] for device in ("npu", "cuda")}
    assert [each.code for each in found["npu"]] == ["GS407"]
    assert found["cuda"] == []


@pytest.mark.parametrize("device", ["auto", "npu", "cuda", "cpu"])
@pytest.mark.parametrize(
    ("made", "body"),
    [
        (
            "nn.MultiheadAttention(4, 2, batch_first=True)",
            "return self.lin(x[:, None], x[:, None], x[:, None])[0][:, 0]",
        ),
        ("nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)", "return self.lin(x[:, None])[:, 0]"),
    ],
)
def test_layers_with_a_fused_path_take_the_same_path_in_every_pass(check, made, body, device):
    build = f"(lambda m: (setattr(m, 'lin', {made}), m)[1])(Model())"
    assert check(body, device, build=build).findings == []


def test_a_param_that_only_divides_is_told_how_to_be_declared(check):
    found = only(check("return x / t", params=", t", inputs="[x, t]", top="params: {t: {type: float, default: 2.0}}"))
    assert found.code == "GS511"
    assert 'updates: [{op: "aten::div.Tensor", arg: other, from: t}]' in found.hint


def test_states_and_write_backs_are_traced_as_they_are_captured(check):
    report = check(
        "return x + s, s * 0.5",
        params=", s",
        inputs="[x, s]",
        outputs="[y, s]",
        buffers="  s: {role: state, shape: [batch, 4], dtype: float32}",
    )
    assert report.findings == []
    (region,) = report.regions
    assert (region.operators, [value.name for value in region.outputs]) == (4, ["y", "s"])


def test_optional_and_const_and_model_owned_arguments_are_passed(check):
    report = check(
        "assert flag is True and kept is self.kept\nreturn x + kept",
        params=", kept, flag",
        inputs="{x: x, kept: {attr: model.kept}, flag: {const: true}}",
    )
    assert report.findings == []

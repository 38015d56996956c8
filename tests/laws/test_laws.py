"""Every law on an example: `check` and a capture find the same, at the same place, in the same words.

An example is one file of the folder ``examples``: a model, with its spec as the docstring. The text beside it is what
both must find. To make the texts anew, run ``python tests/laws/test_laws.py``, and read the difference.
"""

import contextlib
import re
import sys
import tempfile
from pathlib import Path

import pytest
import torch

import graphspec
from graphspec.codes import CODES
from graphspec.errors import FindingsError, GraphSpecError, ModelError
from graphspec.recording.source import site_of
from graphspec.runtime.check import check_spec
from graphspec.runtime.laws import registry

EXAMPLES = sorted((Path(__file__).parent / "examples").glob("*.py"))

#: What only real values show, and what only a trace without values meets: laws of physics, and nothing else.
ONLY_A_CAPTURE = {"GS728", "GS730", "GS753"}
ONLY_CHECK = {"GS715", "GS743", "GS744", "GS746", "GS747"}
#: Said beside another finding, of examples that need an operator of their own.
ASIDE = {"GS715"}
#: Codes without an example: a graph that gives other values than eager is a fault of graphspec or of torch; what a
#: compiler of a device takes away is shown where there is such a compiler.
WITHOUT_EXAMPLE = {"GS723", "GS772"}


def written(example, folder):
    """The path of the example's spec, in a folder of its own."""
    source = example.read_text()
    spec = re.match(r'"""The spec:\n\n(.*?)\n"""\n', source, re.DOTALL)
    (folder / "model.py").write_text(source)
    model = "" if "\nmodel:" in spec[1] else "model: {factory: model.py:Model}\n"
    (folder / "model.yaml").write_text(f"graphspec: 1\nname: example\n{model}{spec[1]}\n")
    return folder / "model.yaml"


def shown(findings, folder):
    return "".join(f"{finding}\n" for finding in findings).replace(f"{folder}/", "")


def without_counts(text):
    """Without the values that the host happened to have: check and capture call a region not equally often."""
    return re.sub(r"\(\d+, then \d+\)", "", text)


def of_check(path):
    return list(check_spec(graphspec.load(path), "cpu" if "device: npu" not in path.read_text() else "npu").findings)


def of_capture(path):
    """Errors and warnings of a capture, as findings or as text."""
    torch.manual_seed(0)
    try:
        runner = graphspec.open(path, device="cpu")
    except FindingsError as error:
        return list(error.diagnostics)
    except ModelError as error:
        return [error]
    with contextlib.closing(runner):
        return list(runner.warnings)


@pytest.mark.parametrize("example", EXAMPLES, ids=[each.stem for each in EXAMPLES])
def test_check_and_a_capture_find_the_same(example, tmp_path):
    path, code = written(example, tmp_path), example.name[:5]
    checked = of_check(path)
    assert shown(checked, tmp_path) == example.with_suffix(".txt").read_text()
    checked = [each for each in checked if each.code == code or each.code not in ASIDE]
    if code in ONLY_A_CAPTURE:
        assert checked == []
        assert {each.code for each in of_capture(path)} == {code}
        return
    assert {each.code for each in checked} == {code}
    captured = [each for each in of_capture(path) if not any(f"[{aside}]" in str(each) for aside in ASIDE - {code})]
    if code == "GS747":  # what may happen is a warning; where it happens, a capture sees it
        assert {each.code for each in captured} == {"GS753"}
    elif code in ONLY_CHECK:
        assert captured == [] or code == "GS744"
    elif code == "GS741":  # the user's own exception comes first, with its line
        assert site_of(captured[0].__cause__).line == checked[0].line
    elif checked[0].severity == "warning":
        assert [each.removeprefix(f"{tmp_path}/") for each in captured] in (
            [str(each).removeprefix(f"{tmp_path}/") for each in checked],
            [each.message for each in checked],
        )
    else:
        assert without_counts(shown(captured, tmp_path)) == without_counts(shown(checked, tmp_path))


def test_every_code_of_a_law_is_explained_and_has_an_example():
    judged = set(registry.codes()) | {"GS512", "GS513", "GS723", "GS728", "GS730"}
    assert judged <= set(CODES)
    assert judged - {each.name[:5] for each in EXAMPLES} == WITHOUT_EXAMPLE


def test_every_code_of_a_capture_belongs_to_a_law():
    late = {code for code in CODES if re.match(r"GS(51|7)", code)}
    assert late == set(registry.codes()) | {"GS512", "GS513", "GS723", "GS728", "GS730"}


def test_a_refusal_leaves_nothing_behind(tmp_path):
    path = written(next(each for each in EXAMPLES if each.stem == "GS725-counter"), tmp_path)
    with pytest.raises(GraphSpecError):
        graphspec.open(path, device="cpu")
    runner = graphspec.open(path, device="cpu", capture=False)
    with contextlib.closing(runner), pytest.raises(GraphSpecError):
        runner.capture()
    assert runner.model.calls == 0


if __name__ == "__main__":
    for each in EXAMPLES:
        with tempfile.TemporaryDirectory() as made:
            spec = written(each, Path(made))
            each.with_suffix(".txt").write_text(shown(of_check(spec), made))
            found = of_capture(spec)
            sys.stdout.write(f"== {each.stem}\n{each.with_suffix('.txt').read_text()}-- open\n")
            sys.stdout.write(shown(found, made))

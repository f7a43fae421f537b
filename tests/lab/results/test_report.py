"""The page: whole, small, safe, and what it shows is what runs hold; in a real browser where there is one."""

import base64
import json
import re
import zlib
from types import SimpleNamespace

import numpy as np
import pytest

from bitfreeze.lab.results.bit_history import BitHistory
from bitfreeze.lab.results.report import build_page
from bitfreeze.lab.results.report.answer import answer
from bitfreeze.lab.results.report.choice import by_setting, with_bits
from bitfreeze.lab.results.report.explorer import explorer_data
from bitfreeze.lab.results.report.section import lines_of, overview
from support.browser import AXE, CHROMIUM, Browser
from support.made_runs import make_run

pytest.importorskip("matplotlib")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium to open the page with")
EVIL = "</script><img src=x onerror=alert(1)>"

ALEXNET = {
    "backbone.0.weight": (64, 3, 4, 4), "backbone.0.bias": (64,), "backbone.4.weight": (128, 64, 3, 3),
    "backbone.4.bias": (128,), "backbone.8.weight": (256, 128, 2, 2), "backbone.8.bias": (256,),
    "backbone.13.weight": (2048, 2440), "backbone.13.bias": (2048,), "backbone.16.weight": (2048, 2048),
    "backbone.16.bias": (2048,),
}  # fmt: skip


def unpacked(run, tensor):
    """A second reader of what the page's script reads: planes of bits, gain, value and change of the centre."""
    tasks, cells = len(run["tasks"]), len(tensor["rows"]) * len(tensor["cols"])
    data = np.frombuffer(zlib.decompress(base64.b64decode(tensor["bytes"])), np.uint8)
    planes = data.reshape(-1, tasks, cells)
    change = sum(planes[3 + k].astype(np.int64) << (8 * k) for k in range(4)).astype(np.uint32).view(np.int32)
    flat = np.add.outer(tensor["rows"], tensor["cols"]).ravel()
    return flat, planes[0], planes[1].view(np.int8) / 8, planes[2].view(np.int8), np.cumsum(change, 0)


def check_against_bits(run, bits):
    for tensor in run["tensors"]:
        name = tensor["name"]
        flat, frozen, gain, offset, units = unpacked(run, tensor)
        inside = flat < tensor["count"]
        assert len(np.unique(flat)) == len(flat)
        for t in range(bits.tasks):
            for found, real in ((frozen, bits.bits), (offset, bits.offset), (units, bits.units)):
                assert np.array_equal(found[t][inside], real(name, t).ravel()[flat[inside]])
            assert np.allclose(gain[t][inside], bits.gain(name, t).ravel()[flat[inside]], atol=1 / 16 + 1e-3)
            assert abs(tensor["means"][t] - bits.bits(name, t).mean()) < 0.006


def test_what_the_explorer_gets_is_what_the_run_holds(tmp_path):
    run = make_run(tmp_path, "blip")
    (data,) = explorer_data([run], 10**6)
    check_against_bits(data, run.bits)
    assert all(len(unpacked(data, tensor)[0]) == tensor["count"] for tensor in data["tensors"])  # all of it


class Large(BitHistory):
    """Ten tasks of the paper's AlexNet, 9.4 million parameters, made up as they are asked for."""

    def __init__(self):
        super().__init__([None] * 10, {})
        self._shapes, random = ALEXNET, np.random.default_rng(0)
        self.base = {name: random.integers(0, 11, shape, np.uint8) for name, shape in ALEXNET.items()}
        self.noise = {name: random.integers(-(2**20), 2**20, shape, np.int32) for name, shape in ALEXNET.items()}
        self.names, self.has_values = list(ALEXNET), True

    def bits(self, name, task):
        return self.base[name] + np.uint8(task)

    def gain(self, name, task):
        return self.base[name].astype(np.float32) - 5

    def units(self, name, task):
        return (self.noise[name] ^ (7919 * task)) >> self.bits(name, task)

    def offset(self, name, task):
        return ((self.noise[name] >> task) % 255 - 127).astype(np.int8)

    def bound(self, name):
        return 0.25


def test_a_page_of_ten_tasks_of_alexnet_stays_below_5_mb(tmp_path):
    run = make_run(
        tmp_path, "blip", accuracies=[[90.0] * (t + 1) for t in range(10)], tasks=[f"t{k}" for k in range(10)]
    )
    run.__dict__["bits"] = large = Large()
    assert 9.3e6 < sum(int(np.prod(shape)) for shape in ALEXNET.values()) < 9.6e6
    page = build_page([run])
    assert len(page.encode()) < 5_000_000
    (data,) = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])["runs"]
    assert len(data["tensors"]) == len(ALEXNET)
    for tensor in data["tensors"][::3]:
        check_against_bits({**data, "tensors": [tensor]}, large)
    assert "every so many rows and columns are shown" in page


def test_without_room_the_explorer_is_left_out_and_the_page_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("bitfreeze.lab.results.report.page.chosen_figures", lambda runs: [])
    run = make_run(tmp_path, "blip")
    assert "no room left for the frozen bits" in build_page([run], limit=1)
    assert "no room left for the frozen bits" not in build_page([run])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Runs with names that would like to be more than text, and the page of all of them."""
    root = tmp_path_factory.mktemp("runs")
    evil = make_run(root, "blip", tasks=(EVIL, "two"))
    settings = evil.folder.path / "config.toml"
    settings.write_text(settings.read_text() + f'\n[note]\ntext = "{EVIL}"\n')
    plain = [make_run(root, "ft", seed=seed, changes=["training.epochs=4"]) for seed in (0, 1)]
    runs = [evil, make_run(root, "blip", variant="released", seed=3), *plain]
    return SimpleNamespace(runs=runs, page=build_page(runs))


def test_all_that_comes_from_files_is_escaped(made):
    assert EVIL not in made.page
    assert made.page.count("</script>") == 2
    assert "<img src=x" not in made.page
    assert "&lt;/script&gt;&lt;img" in made.page


def test_the_page_needs_nothing_from_a_network(made):
    assert "default-src 'none'" in made.page
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", made.page)
    assert "connect-src" not in made.page


def test_the_table_stands_beside_the_settings_of_each_run(made):
    cells = re.findall(r"<t[dh](?: scope=\"row\")?>(?:<b>)?(.*?)(?:</b>)?</t[dh]>", made.page)
    assert cells[:5] == ["blip", "", "1", "87.50", "-10.00"]
    assert "87.50 ± 0.00" in cells
    assert made.page.count("<summary>digits5 ") == 4
    assert "bitfreeze run digits5 --method ft --seed 1 --set training.epochs=4" in made.page


def test_only_runs_of_one_setting_are_compared_and_each_variant_is_shown_first():
    def of(changes, variant="", seed=0, bits=True):
        config = {"changes": changes, "variant": variant, "seed": seed}
        return SimpleNamespace(config=config, bits=bits)

    runs = [of(["method.budget=1"]), of(["training.epochs=4"]), of([], seed=1), of([], "released"), of([])]
    assert {key: len(group) for key, group in by_setting(runs).items()} == {"": 4, "training.epochs=4": 1}
    assert with_bits([*runs, of([], bits=None)]) == [runs[4], runs[3], runs[2], runs[0], runs[1]]


def answer_of(runs):
    return answer("digits5", lines_of("digits5", runs))


def test_the_answer_is_the_best_rival_with_its_cost(tmp_path):
    runs = [make_run(tmp_path, "joint", accuracies=((99.0,), (99.0, 99.0)))]
    for seed in (0, 1):
        runs += [make_run(tmp_path, "blip", seed=seed, accuracies=((96.0,), (95.0, 97.0 + seed / 10)))]
        runs += [make_run(tmp_path, "ft", seed=seed, accuracies=((96.0,), (60.0, 97.0 + seed / 10)))]
    found = answer_of(runs)
    assert found.lead == "Of 2 methods blip knows most after the last task, over 2 seeds."
    facts = {fact.title: (fact.value, fact.note) for fact in found.facts}
    assert facts["ACC"] == ("96.03 ± 0.04 %", "next: ft 78.53 ± 0.04")
    assert facts["change since learned"] == ("-1.00 points", "fine-tuning: -36.00")
    assert facts["memory"] == ("0.005 MB", "1.2 times the network alone")  # 5000 bytes, 4000 of them the network's
    assert facts["time"] == ("42 s", "1 times fine-tuning's")
    assert found.more == "For comparison, joint reaches 99.00."
    alone = answer_of(runs[1:2])
    assert alone.lead == "blip ends with ACC 96.00, over one seed."
    assert answer("digits5", []) is None


def test_methods_that_seeds_cannot_tell_apart_are_called_level(tmp_path):
    runs = []
    for seed, off in enumerate((0.0, 3.0)):
        runs += [make_run(tmp_path, "blip", seed=seed, accuracies=((96.0,), (95.0, 97.0 - off)))]
        runs += [make_run(tmp_path, "ewc", seed=seed, accuracies=((96.0,), (94.0, 97.0 - off)))]
    assert (
        answer_of(runs).lead
        == "Of 2 methods blip knows most after the last task, level with ewc within the spread of 2 seeds."
    )


def test_only_lines_with_common_settings_are_compared(tmp_path):
    runs = [make_run(tmp_path, "hat", accuracies=((99.0,), (99.0, 99.0)))]
    for method, last in (("ft", 60.0), ("blip", 90.0)):
        runs += [make_run(tmp_path, method, changes=["training.epochs=4"], accuracies=((96.0,), (last, 97.0)))]
    assert (
        answer_of(runs).lead == "Of 2 methods blip knows most after the last task, over one seed (training.epochs=4)."
    )


def test_several_streams_have_their_answers_at_the_top(tmp_path):
    lines = {name: lines_of("digits5", [make_run(tmp_path / name, "blip")]) for name in ("digits5", "mnist5")}
    assert overview({"digits5": lines["digits5"]}) == ""
    assert overview(lines).count("<li>") == 2


def test_each_figure_has_a_caption_and_words_for_those_who_cannot_see_it(made):
    figures = re.findall(r"<figure .*?</figure>", made.page, re.DOTALL)
    assert len(figures) > 6
    for figure in figures:
        assert re.search(r'alt="[^"]{20,}"', figure)
        assert re.search(r"<figcaption><b>.{15,}</b> .{20,}</figcaption>", figure)


@needs_chromium
@pytest.mark.skipif(AXE is None, reason="there is no axe-core: make test-browser")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_checker_of_accessibility_finds_no_fault(scheme, made, tmp_path):
    file = tmp_path / "report.html"
    file.write_text(made.page)
    with Browser(tmp_path / "profile") as page:
        page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        for width in (390, 1280):
            page.open(f"file://{file}", width)
            page.wait_for("document.querySelector('#cell h3') !== null")
            assert page.faults() == []


@needs_chromium
def test_the_page_in_a_browser(made, tmp_path):
    """It loads without a complaint, answers to picking, pointing and keys, and holds at both widths."""
    run, released = made.runs[:2]
    file = tmp_path / "report.html"
    file.write_text(made.page)
    with Browser(tmp_path / "profile") as page:
        for width in (390, 1280):
            page.open(f"file://{file}", width)
            page.wait_for("document.querySelector('#cell h3') !== null")
            overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert page.value(overflow) == 0
            assert page.value("[...document.images].every(i => i.complete && i.naturalWidth > 0 && i.alt)")
        # pointing: the middle of the cell in row 4, column 1 of 6 x 5
        page.point_at("#map", 1.5 / 5, 4.5 / 6)
        page.wait_for("document.querySelector('#cell h3').textContent === 'backbone.1.weight[4, 1]'")
        assert page.value("[...document.querySelectorAll('#cell tbody tr')].map(r => r.cells[1].textContent)") == [
            str(run.bits.bits("backbone.1.weight", t)[4, 1]) for t in (0, 1)
        ]
        centre, radius = (float(read("backbone.1.weight", 1)[4, 1]) for read in (run.bits.centre, run.bits.radius))
        shown = page.value("document.querySelectorAll('#cell tbody tr')[1].cells[4].textContent").split(" to ")
        assert np.allclose([float(end) for end in shown], [centre - radius, centre + radius], atol=radius / 50)
        page.value("document.querySelector('#map').focus()")
        page.press("ArrowRight")
        page.wait_for("document.querySelector('#cell h3').textContent === 'backbone.1.weight[4, 2]'")
        # picking: another run, a layer of three axes, the first task
        page.value(
            "for (const [id, value, kind] of [['pick-run', 1, 'change'], ['pick-tensor', 2, 'change'], "
            "['pick-task', 1, 'input']]) { const e = document.getElementById(id); e.value = value; "
            "e.dispatchEvent(new Event(kind)); }"
        )
        mean = released.bits.bits("backbone.10.weight", 0).mean()
        page.wait_for(
            f"document.querySelector('#map-note').textContent.includes('{round(float(mean), 2)} frozen bits')"
        )
        page.wait_for("document.querySelector('#cell h3').textContent.startsWith('backbone.10.weight[')")
        assert page.complaints == []

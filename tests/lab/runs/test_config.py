"""Settings: presets, variants and changes."""

import re
import shlex
import tomllib
from collections.abc import Sequence
from dataclasses import asdict

import pytest

from bitfreeze.lab.methods import methods
from bitfreeze.lab.runs.config import make_config, preset
from bitfreeze.lab.runs.values import to_toml
from bitfreeze.lab.streams import StreamRecord, streams


@pytest.mark.parametrize("stream", streams)
@pytest.mark.parametrize("method", methods)
def test_every_method_has_settings_on_every_stream(stream, method):
    if streams[stream].trainer not in methods[method].record.trainers:
        pytest.skip("refused, as test_games shows")
    if preset(stream).get("stream", {}).get("scenario", "task") not in methods[method].record.scenarios:
        pytest.skip("refused, as test_scenarios shows")
    config = make_config(stream, method)
    assert config.settings.epochs > 0
    assert config.name == f"{stream}/{method}/seed0"
    methods[method](**config.method_options)


def test_mnist5_has_the_released_settings():
    config = make_config("mnist5", "blip", "released", seed=3)
    assert (config.training["lr"], config.training["batch"], config.training["epochs"]) == (0.01, 64, 200)
    assert (config.method_options["rules"], config.method_options["prior"]) == ("released", 1e-11)
    assert config.network == {"kind": "mlp", "hidden": [1200], "init": "normal", "bias": True}
    assert config.name == "mnist5/blip-released/seed3"
    assert config.command == "bitfreeze run mnist5 --method blip --variant released --seed 3"
    assert preset("mnist5")["paper"]["blip"] == {"acc": 99.64, "bwt": 0.01}


@pytest.mark.parametrize("stream", streams)
def test_every_variant_has_settings_that_its_method_takes(stream):
    for method, own in preset(stream).get("methods", {}).items():
        for variant in ("", *own.get("variants", {})):
            methods[method](**make_config(stream, method, variant).method_options)


def test_options_that_make_no_sense_are_refused_before_anything_is_run():
    with pytest.raises(ValueError, match=r"method.rules must be directions, strict, .* got 'relased'; write"):
        make_config("mnist5", "blip", changes=["method.rules=relased"])
    with pytest.raises(ValueError, match=r"method\.smax must be at least 1, got 0\.5"):
        make_config("mnist5", "hat", changes=["method.smax=0.5"])
    with pytest.raises(ValueError, match=r"method.sampling must be weights or local, got 'flipout'"):
        make_config("mnist5", "ucb", changes=["method.sampling=flipout"])
    with pytest.raises(ValueError, match=r"method.latent must be at least 1, got 0"):
        make_config("mnist5", "acl", changes=["method.latent=0"])


def test_a_method_that_is_trained_like_another_has_its_settings_and_variants():
    for variant in ("", "adversarial"):
        one, other = (make_config("five_datasets", method, variant) for method in ("acl", "acl_r"))
        assert one.training == other.training
        assert {name: other.method_options[name] for name in one.method_options} == one.method_options


@pytest.mark.parametrize(
    ("stream", "lr", "prior", "bound", "samples"),
    [
        ("alt_cifar", 0.05, 5e-12, 6.0, 8000),
        ("five_datasets", 0.05, 5e-13, 6.0, 8000),
        ("mini_imagenet20", 0.01, 5e-14, 20.0, 1000),
    ],
)
def test_picture_streams_have_the_released_settings(stream, lr, prior, bound, samples):
    config = make_config(stream, "blip", "released")
    assert (config.training["lr"], config.training["batch"], config.training["epochs"]) == (lr, 32, 200)
    options = config.method_options
    assert (options["rules"], options["prior"]) == ("released", prior)
    assert (options["bound"], options["samples"]) == (bound, samples)


def test_a_method_or_variant_may_have_a_network_of_its_own():
    def network(method, variant="", changes=()):
        return make_config("mini_imagenet20", method, variant, changes=changes).network

    assert network("ft")["dropout"] == [0.2, 0.2]
    assert network("blip") == {**network("ft"), "dropout": [0.2, 0.5]}
    assert network("blip", "released_resnet") == {"kind": "resnet18", "width": 1.0, "statistics": "first"}
    assert network("blip", changes=["network.kind=resnet18"])["kind"] == "resnet18"
    assert network("blip", changes=["network.dropout=[0.0, 0.0]"])["dropout"] == [0.0, 0.0]
    assert network("blip", "released_resnet", ["network.kind=alexnet"]) == {**network("ft")}


def test_none_may_be_said_in_a_preset():
    assert make_config("alt_cifar", "ucb").method_options["mean_noise"] is None


def test_changes_are_applied_and_name_the_run():
    changes = ["training.epochs=4", "method.tolerance=0.2", "network.hidden=[5, 6]", "stream.validation=holdout"]
    config = make_config("digits5", "blip", changes=changes)
    assert config.training["epochs"] == 4
    assert config.method_options["tolerance"] == 0.2
    assert config.network["hidden"] == [5, 6]
    assert config.stream_options == {"seed": 0, "validation": "holdout", "tuning": False, "scenario": "task"}
    other = make_config("digits5", "blip", changes=changes[:-1])
    assert config.name != other.name
    assert config.name == make_config("digits5", "blip", changes=changes[::-1]).name


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("digit5", "blip"), r"no stream 'digit5': did you mean digits5"),
        (("digits5", "blib"), r"no method 'blib': did you mean blip"),
        (("mnist5", "blip", "relased"), r"variant of blip on mnist5 'relased': did you mean released"),
        (("digits5", "ft", "", 0, ["training.epoch=1"]), r"setting of training 'epoch': did you mean epochs"),
        (("digits5", "ft", "", 0, ["trainin.epochs=1"]), r"part of the settings 'trainin': did you mean training"),
        (
            ("digits5", "ft", "", 0, ["stream.validatoin=holdout"]),
            r"setting of stream 'validatoin': did you mean valid",
        ),
        (("digits5", "ft", "", 0, ["network.hiden=[3]"]), r"setting of network 'hiden': did you mean hidden"),
        (
            ("digits5", "ft", "", 0, ["network.kind=mpl"]),
            r"network.kind must be mlp, .* got 'mpl'",
        ),
        (("digits5", "ft", "released"), r"variant of ft on digits5 'released': choose from none"),
        (("digits5", "ft", "", 0, ["training.lr=abc"]), r"training.lr must be a number, got 'abc'"),
        (
            ("digits5", "ft", "", 0, ["training.precision=fp16"]),
            r"precision must be float32 or bf16, got 'fp16'; write",
        ),
        (("control", "ft", "", 0, ["training.precision=16"]), r"training.precision must be float32 or bf16, got '16'"),
        (("digits5", "ft", "", 0, ["training.batch=true"]), r"training.batch must be a whole number, got 'true'"),
        (("digits5", "ft", "", 0, ["training.batch=0"]), r"training.batch must be a whole number of at least 1"),
        (
            ("digits5", "ft", "", 0, ["network.hidden=3"]),
            r"network.hidden must be a list, each entry a whole number, got '3'; write .* network.hidden=\[1200\]$",
        ),
        (("digits5", "ft", "", 0, ["stream.tuning=1"]), r"stream.tuning must be true or false, got '1'"),
        (
            ("digits5", "ewc", "", 0, ["method.samples=abc"]),
            r"method.samples must be a whole number or none, got 'abc'",
        ),
        (
            ("digits5", "ft", "", 0, ["training.epochs=2", "training.epochs=3"]),
            r"training.epochs must be given once, got '2' and '3'",
        ),
        (
            ("digits5", "ft", "", 0, ["training.lr=inf"]),
            r"training.lr must be a number, got 'inf'; write for example training.lr=0.05$",
        ),
        (("digits5", "ewc", "", 0, ["method.strength=inf"]), r"method.strength must be a number, got 'inf'"),
        (("digits5", "ewc", "", 0, ["method.strength=nan"]), r"method.strength must be a number, got 'nan'"),
        (
            ("alt_cifar", "ft", "", 0, ["network.dropout=[0.1, inf]"]),
            r"network.dropout must be a list, each entry a number, got",
        ),
        (("control", "ft", "", 0, ["stream.envs=[1]"]), r"stream.envs must be a list, each entry a word, got '\[1\]'"),
        (
            ("digits5", "ft", "", 0, ['network.hidden=["a"]']),
            r"network.hidden must be a list, each entry a whole number",
        ),
        (
            ("digits5", "ft", "", 0, ["network.hidden=[1979-05-27]"]),
            r"network.hidden must be a list, each entry a whole",
        ),
        (("digits5", "ft", "", -1), r"seed must be a whole number from 0 to 4294967295, got -1"),
        (("digits5", "ft", "", 2**32), r"seed must be a whole number from 0 to 4294967295"),
        (("digits5", "ft", "", 0, ["stream.seed=-1"]), r"stream.seed must be a whole number from 0 to 42.*, got -1"),
        (("pmnist", "ft", "", 0, ["stream.first=last"]), r"stream.first must be permuted or identity, got 'last'"),
        (("digits5", "ft", "", 0, ["epochs"]), r"must be written part.name=value"),
    ],
)
def test_unknown_names_get_the_near_ones(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        make_config(*arguments)


@pytest.mark.parametrize(
    "text", ["0.1 # c", "0.1\n", " 0.1", "0x10", "1_0", "+1", "1e999", "NaN", "-Infinity", "", '"1"']
)
def test_a_number_is_written_in_one_way(text):
    sentence = f"training.lr must be a number, got {text!r}; write for example training.lr=0.05"
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        make_config("digits5", "ft", changes=[f"training.lr={text}"])


def test_the_type_of_an_option_comes_from_its_hint_and_not_from_the_preset(monkeypatch):
    def make(*, seed: int = 0, cut: int | None = None, sizes: Sequence[Sequence[int]] = ((1,),)):
        raise NotImplementedError

    def config(*changes):
        return make_config("whole", "ft", changes=changes)

    record = StreamRecord("whole", "a preset with whole numbers", (), make, {"training": {"lr": 1, "epochs": 2}})
    monkeypatch.setitem(streams, "whole", record)
    assert config("training.lr=0.5").training["lr"] == 0.5
    assert config("stream.cut=3").stream_options["cut"] == 3
    assert config("stream.cut=3").settings.lr == 1
    assert config("stream.sizes=[[1, 2], []]").changes == ("stream.sizes=[[1,2],[]]",)
    with pytest.raises(ValueError, match=r"stream.cut must be a whole number or none, got '0.5'"):
        config("stream.cut=0.5")


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        ({"training": {"lr": "high"}}, "training.lr must be a number, got 'high'"),
        ({"training": {"rate": 1}}, "there is no setting of training 'rate'"),
        ({"network": {"kind": "mlp", "hidden": 3}}, "network.hidden must be a list, each entry a whole number, got 3"),
        ({"stream": {"validation": "test"}}, "stream.validation must be train or holdout, got 'test'"),
        ({"stream": {"seed": -1}}, "stream.seed must be a whole number from 0"),
        ({"methods": {"ft": {"clip": "some"}}}, "method.clip must be a number or none, got 'some'"),
        ({"methods": {"ft": {"training": {"epochs": 1.5}}}}, "training.epochs must be a whole number, got 1.5"),
    ],
)
def test_a_preset_is_checked_as_a_change_is(own, sentence, monkeypatch):
    monkeypatch.setitem(streams, "mine", StreamRecord("mine", "", (), streams["digits5"].make, own))
    with pytest.raises(ValueError, match=sentence):
        make_config("mine", "ft")


@pytest.mark.parametrize(
    ("stream", "changes", "name"),
    [
        (
            "digits5",
            ["training.epochs=4", "method.bits=12", "network.hidden=[5, 6]"],
            "blip-method.bits=12,network.hidden=_5,6_,training.epochs=4-756a3d",
        ),
        (
            "mnist5",
            ["training.lr=0.10", "method.clip=none", "method.samples=100"],
            "ewc-method.clip=none,method.samples=100,training.lr=0.10-c8e5b3",
        ),
        (
            "mnist5",
            ["training.lr=1", "method.labels=true", "stream.tuning=true"],
            "ewc-method.labels=true,stream.tuning=true,training.lr=1-c0e64f",
        ),
        (
            "alt_cifar",
            ["training.epochs=12", "network.dropout=[0, 0.5]", "stream.tasks=3"],
            "ft-network.dropout=_0,0.5_,stream.tasks=3,training.epochs=12-54e17e",
        ),
        (
            "atari6",
            ['stream.envs=["ALE/Pong-v5", "ALE/Boxing-v5"]', "training.steps=200000"],
            "blip-stream.envs=__ALE_Pong-v5_,_ALE_Boxing-v5__,training.steps=2-8303df",
        ),
    ],
)
def test_a_run_keeps_the_name_that_it_had_before(stream, changes, name):
    """Names that were made when options had no hints: runs on disk are found by them."""
    method = name.partition("-")[0]
    assert make_config(stream, method, changes=changes).name == f"{stream}/{name}/seed0"


def test_entries_of_a_list_may_be_whole_where_numbers_are_meant():
    assert make_config("alt_cifar", "ft", changes=["network.dropout=[0, 0.5]"]).network["dropout"] == [0, 0.5]
    assert make_config("digits5", "ft", changes=["network.hidden=[]"]).network["hidden"] == []


def test_lists_are_spelled_in_one_way():
    typed = [
        make_config("digits5", "ft", changes=[f"network.hidden={text}"]) for text in ("[16, 8]", "[16,8]", "[ 16 ,8]")
    ]
    assert len({(config.name, config.command) for config in typed}) == 1
    assert typed[0].changes == ("network.hidden=[16,8]",)
    assert typed[0].network["hidden"] == [16, 8]


def test_true_and_false_are_words_where_a_word_is_wanted():
    assert make_config("digits5", "ewc", changes=["method.labels=true"]).method_options["labels"] == "true"
    assert make_config("digits5", "imm", changes=["method.merge=false"]).method_options["merge"] is False


def test_released_imm_does_not_merge():
    for stream in (name for name in streams if "imm" in preset(name).get("methods", {})):
        assert make_config(stream, "imm", "released").method_options["merge"] is False
        assert make_config(stream, "imm").method_options["merge"] is True


def test_toml_round_trip():
    table = asdict(make_config("mnist5", "blip", "text"))
    read = tomllib.loads(to_toml(table))
    assert read["method_options"] == {k: v for k, v in table["method_options"].items() if v is not None}
    assert read["training"] == table["training"]


def test_a_word_that_looks_like_a_truth_value_stays_a_word_where_a_word_is_meant():
    config = make_config(
        "digits5", "blip", "strict", changes=["method.labels=true", "method.snap=true", "method.gain=eq8"]
    )
    assert config.method_options["labels"] == "true"
    assert config.method_options["snap"] is True
    assert config.method_options["gain"] == "eq8"


def test_none_may_be_said_where_an_option_allows_it():
    assert make_config("digits5", "ewc", changes=["method.clip=none"]).method_options["clip"] is None
    assert make_config("digits5", "ucb", changes=["method.mean_noise=none"]).method_options["mean_noise"] is None
    with pytest.raises(ValueError, match=r"method.strength must be a number, got 'none'"):
        make_config("digits5", "ewc", changes=["method.strength=none"])


def test_a_command_survives_a_shell():
    config = make_config("control", "ft", changes=['stream.envs=["CartPole-v1?permute=1&gravity=20"]'])
    assert shlex.split(config.command)[-1] == 'stream.envs=["CartPole-v1?permute=1&gravity=20"]'


def test_a_change_to_a_network_that_a_method_does_not_use_is_refused():
    with pytest.raises(
        ValueError, match=r"acl_r makes networks of its own, so network.hidden=\[7\] would change nothing"
    ):
        make_config("mnist5", "acl_r", changes=["training.epochs=5", "network.hidden=[7]"])


def test_what_a_preset_has_anyway_is_no_change():
    plain = make_config("atari6", "blip")
    assert make_config("atari6", "blip", changes=["training.steps=10000000", "network.kind=paper"]) == plain
    small = make_config("atari6", "blip", "released", changes=["network.kind=small", "method.prior=1.92e-14"])
    assert small.changes == ("network.kind=small",)
    assert small.network["kind"] == "small"

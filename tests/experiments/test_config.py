"""Settings: presets, variants and changes."""

import shlex
import tomllib
from dataclasses import asdict

import pytest

from bitfreeze.experiments.config import make_config, preset
from bitfreeze.experiments.values import to_toml
from bitfreeze.methods import methods
from bitfreeze.streams import streams


@pytest.mark.parametrize("stream", streams)
@pytest.mark.parametrize("method", methods)
def test_every_method_has_settings_on_every_stream(stream, method):
    if streams[stream].trainer not in methods[method].record.trainers:
        pytest.skip("refused, as test_games shows")
    config = make_config(stream, method)
    assert config.settings.epochs > 0
    assert config.name == f"{stream}/{method}/seed0"
    methods[method](**config.method_options)


def test_mnist5_has_the_released_settings():
    config = make_config("mnist5", "blip", "released", seed=3)
    assert (config.training["lr"], config.training["batch"], config.training["epochs"]) == (0.01, 64, 200)
    assert (config.method_options["rules"], config.method_options["prior"]) == ("released", 1e-11)
    assert config.network == {"kind": "mlp", "hidden": [1200]}
    assert config.name == "mnist5/blip-released/seed3"
    assert config.command == "bitfreeze run mnist5 --method blip --variant released --seed 3"
    assert preset("mnist5")["paper"]["blip"] == {"acc": 99.64, "bwt": 0.01}


@pytest.mark.parametrize("stream", streams)
def test_every_variant_has_settings_that_its_method_takes(stream):
    for method, own in preset(stream).get("methods", {}).items():
        for variant in ("", *own.get("variants", {})):
            methods[method](**make_config(stream, method, variant).method_options)


def test_options_that_make_no_sense_are_refused_before_anything_is_run():
    with pytest.raises(ValueError, match="rules='relased' is not known"):
        make_config("mnist5", "blip", changes=["method.rules=relased"])
    with pytest.raises(ValueError, match=r"smax=0\.5 is out of range"):
        make_config("mnist5", "hat", changes=["method.smax=0.5"])
    with pytest.raises(ValueError, match="sampling='flipout' is not known"):
        make_config("mnist5", "ucb", changes=["method.sampling=flipout"])
    with pytest.raises(ValueError, match="networks='resnet' is not known"):
        make_config("mnist5", "acl", changes=["method.networks=resnet"])


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
    changes = ["training.epochs=4", "method.budget=0.2", "network.hidden=[5, 6]", "stream.validation=holdout"]
    config = make_config("digits5", "blip", changes=changes)
    assert config.training["epochs"] == 4
    assert config.method_options["budget"] == 0.2
    assert config.network["hidden"] == [5, 6]
    assert config.stream_options == {"seed": 0, "validation": "holdout", "tuning": False}
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
        (("digits5", "ft", "", 0, ["network.kind=mpl"]), r"no network for supervised learning 'mpl': did you mean mlp"),
        (("digits5", "ft", "released"), r"variant of ft on digits5 'released': known are none"),
        (("digits5", "ft", "", 0, ["training.lr=abc"]), r"training.lr must be a number, got 'abc'"),
        (("digits5", "ft", "", 0, ["training.batch=true"]), r"training.batch must be a whole number, got 'true'"),
        (("digits5", "ft", "", 0, ["training.batch=0"]), r"training.batch must be a whole number of at least 1"),
        (("digits5", "ft", "", 0, ["network.hidden=3"]), r"network.hidden must be a list, got '3'"),
        (("digits5", "ft", "", 0, ["stream.tuning=1"]), r"stream.tuning must be true or false, got '1'"),
        (
            ("digits5", "ewc", "", 0, ["method.samples=abc"]),
            r"method.samples must be a whole number or none, got 'abc'",
        ),
        (("digits5", "ft", "", 0, ["training.epochs=2", "training.epochs=3"]), r"training.epochs is given twice"),
        (("digits5", "ft", "", 0, ["training.lr=inf"]), r"training.lr must be finite"),
        (("digits5", "ewc", "", 0, ["method.strength=inf"]), r"method.strength must be finite, got 'inf'"),
        (("digits5", "ewc", "", 0, ["method.strength=nan"]), r"method.strength must be finite, got 'nan'"),
        (("alt_cifar", "ft", "", 0, ["network.dropout=[0.1, inf]"]), r"network.dropout must be finite"),
        (("control", "ft", "", 0, ["stream.envs=[1]"]), r"each entry of stream.envs must be a word, .*got 1"),
        (("digits5", "ft", "", 0, ['network.hidden=["a"]']), r"each entry of network.hidden must be a whole number"),
        (("digits5", "ft", "", 0, ["network.hidden=[1979-05-27]"]), r"each entry of network.hidden must be a whole"),
        (("digits5", "ft", "", -1), r"a seed is a whole number from 0 to 4294967295, got -1"),
        (("digits5", "ft", "", 2**32), r"a seed is a whole number from 0 to 4294967295"),
        (("digits5", "ft", "", 0, ["epochs"]), r"written part.name=value"),
    ],
)
def test_unknown_names_get_the_near_ones(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        make_config(*arguments)


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
    for stream in (name for name, record in streams.items() if record.trainer == "supervised"):
        assert make_config(stream, "imm", "released").method_options["merge"] is False
        assert make_config(stream, "imm").method_options["merge"] is True


def test_toml_round_trip():
    table = asdict(make_config("mnist5", "blip", "text"))
    read = tomllib.loads(to_toml(table))
    assert read["method_options"] == {k: v for k, v in table["method_options"].items() if v is not None}
    assert read["training"] == table["training"]


def test_a_word_that_looks_like_a_truth_value_stays_a_word_where_a_word_is_meant():
    config = make_config("digits5", "blip", changes=["method.labels=true", "method.snap=true", "method.gain=eq8"])
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
    small = make_config("atari6", "blip", changes=["network.kind=small", "method.budget=0.1"])
    assert small.changes == ("network.kind=small",)
    assert small.network["kind"] == "small"

"""Environments: real games with few steps."""

import numpy as np
import pytest

from bitfreeze.lab.rl import GameSpec, at_random, derived_seed, game_scores
from bitfreeze.lab.rl.actions import Choice, Numbers
from bitfreeze.lab.rl.games import ATARI6, games

pytest.importorskip("ale_py", reason="needs the extra 'atari'")
import gymnasium

from bitfreeze.lab.rl.atari import STACK, rom_of


def play(environments, steps: int, seed: int = 3):
    """Random actions, always the same."""
    random = np.random.default_rng(0)
    yield environments.reset(seed), None, None
    for _ in range(steps):
        actions = environments.actions.at_random(environments.count, random)
        step = environments.step(actions)
        yield step.seen, step, actions


def test_the_six_games_have_the_action_sets_of_the_paper():
    stream = games("atari6", ATARI6)
    assert [task.classes for task in stream.tasks] == [14, 18, 18, 18, 18, 6]
    assert stream.shape == (4, 84, 84)


def test_a_lost_life_ends_an_episode_and_the_game_goes_on():
    """As ale-py flags it with life_loss_info; and frames from before it are gone from what is seen."""
    from ale_py.vector_env import AtariVectorEnv

    ours = GameSpec("ALE/SpaceInvaders-v5").make(2)
    other = AtariVectorEnv("space_invaders", 2, life_loss_info=True, reward_clipping=False, num_threads=1)
    lives = other.reset(seed=3)[1]["lives"]
    lost, age = 0, np.zeros(2)
    for seen, step, actions in play(ours, 230):
        if step is None:
            assert not seen[:, :3].any()  # a game begins with zeros too
            continue
        frames, reward, terminated, _, info = other.step(actions)
        if step.over.any():
            break
        assert (info["episode_frame_number"] > age).all()  # no game has begun anew
        age = info["episode_frame_number"]
        assert (step.ended == terminated).all()
        assert (step.ended == (info["lives"] < lives)).all()
        assert (reward == step.reward).all()
        assert np.array_equal(frames[:, -1], seen[:, -1])
        for row in np.flatnonzero(step.ended):
            lost += 1
            assert not seen[row, :3].any()
            assert seen[row, 3].any()
            assert frames[row, :3].any()
        lives = info["lives"]
    assert lost >= 2
    ours.close()


def test_games_that_have_fire_begin_with_it():
    """All of the six but KungFuMaster, which has no action that is FIRE alone, and those where it changes nothing."""
    from ale_py.vector_env import AtariVectorEnv

    changed = {}
    for name in ATARI6:
        ours = GameSpec(name).make(8)
        seen = ours.reset(seed=3)
        for fire in (True, False):
            other = AtariVectorEnv(rom_of(name), 8, use_fire_reset=fire, noop_max=30, num_threads=1)
            changed[name, fire] = not np.array_equal(other.reset(seed=3)[0], seen)
            other.close()
        ours.close()
    assert not any(changed[name, True] for name in ATARI6)
    begun_otherwise = {name for name in ATARI6 if changed[name, False]}
    assert {"ALE/Boxing-v5", "ALE/Jamesbond-v5", "ALE/Riverraid-v5"} <= begun_otherwise
    assert "ALE/KungFuMaster-v5" not in begun_otherwise


def test_a_game_that_is_over_begins_anew_within_the_step():
    """Three lives again, zeros in place of the old game's frames, and nothing of it ends the new game's episode."""
    ours = GameSpec("ALE/SpaceInvaders-v5").make(1)
    over_at, before = None, None
    for number, (seen, step, _) in enumerate(play(ours, 700)):
        if step is not None and over_at is None and step.over[0]:
            over_at = number
            assert before == 1
            assert ours.lives[0] == 3
            assert step.ended[0]
            assert not step.cut[0]
            assert not seen[0, :3].any()
            assert seen[0, 3].any()
        elif over_at is not None:
            assert not step.ended[0]
            blank = STACK - 1 - (number - over_at)
            assert [bool(frame.any()) for frame in seen[0]] == [k >= blank for k in range(STACK)]
            if number == over_at + 4:
                break
        before = ours.lives[0]
    assert over_at is not None
    ours.close()


def test_a_game_that_is_cut_short_hands_out_its_own_last_frames(monkeypatch):
    """And not the first ones of the next game, which are what is seen then."""
    from bitfreeze.lab.rl import atari

    class Short(atari.AtariVectorEnv):
        def __init__(self, *names, **options):
            super().__init__(*names, max_num_frames_per_episode=400, **options)

    long = GameSpec("ALE/Boxing-v5").make(2)
    monkeypatch.setattr(atari, "AtariVectorEnv", Short)
    short = GameSpec("ALE/Boxing-v5").make(2)
    cuts = 0
    for (_, ours, _), (frames, _, _) in zip(play(short, 110), play(long, 110), strict=True):
        if ours is not None and ours.cut.any():
            cuts += 1
            (row,) = np.flatnonzero(ours.cut)[:1]
            assert ours.over[row]
            assert ours.ended[row]
            # all but the newest, whose four frames may have been cut short
            assert np.array_equal(ours.last[row, :3], frames[row, :3])
            assert ours.last[row, 3].any()
            assert not ours.seen[row, :3].any()
            break
    assert cuts
    long.close()
    short.close()


def test_scores_are_raw_and_the_same_seed_gives_the_same_game():
    spec = GameSpec("ALE/SpaceInvaders-v5")
    first, again, other = (
        [(seen.copy(), step) for seen, step, _ in play(spec.make(2), 120, seed)] for seed in (5, 5, 6)
    )
    assert all(np.array_equal(a[0], b[0]) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a[0], b[0]) for a, b in zip(first, other, strict=True))
    rewards = np.array([step.reward for _, step in first if step is not None])
    assert rewards.max() >= 5
    assert rewards.sum() != np.sign(rewards).sum()


def test_a_picture_shows_the_game_that_is_played():
    environments = GameSpec("ALE/Boxing-v5").make(1, pictures=True)
    for _ in play(environments, 40):
        pass
    assert environments.picture().shape == (210, 160, 3)
    assert environments.picture().std((0, 1)).min() > 0
    grey, colours = (side.step(np.array([1])) for side in (environments.games, environments.twin))
    for name in ("frame_number", "episode_frame_number", "lives"):  # as many no-ops at the start, as many frames since
        assert (grey[4][name] == colours[4][name]).all()
    environments.close()


def test_every_game_of_gymnasium_is_known():
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    specs = {
        name: spec for name, spec in gymnasium.registry.items() if name.startswith("ALE/") and name.endswith("-v5")
    }
    assert len(specs) > 100
    for name, spec in specs.items():
        assert rom_of(name) == spec.kwargs["game"]


def test_an_unknown_game_is_refused():
    with pytest.raises(ValueError, match="there is no game 'ALE/KungFu-v5'; write its name like"):
        GameSpec("ALE/KungFu-v5").make(1)


def test_games_are_whole_and_each_copy_counts_once():
    """CartPole at random: a score is the length of its game, and longer games are not left out."""
    spec = GameSpec("CartPole-v1")
    scores = game_scores(spec, at_random(Choice(2), 0), 20, 500, seed=1)
    assert scores == game_scores(spec, at_random(Choice(2), 0), 20, 500, seed=1)
    assert max(scores) > 2 * min(scores)
    limited = game_scores(spec, at_random(Choice(2), 0), 20, 12, seed=1)
    assert max(limited) == 12
    assert [min(score, 12) for score in scores[:1]] == limited[:1]


# variants


def test_permuted_mirrored_and_reversed_are_the_same_world_seen_otherwise():
    plain, changed = GameSpec("CartPole-v1").make(2), GameSpec("CartPole-v1?permute=1&mirror=1&reverse=1").make(2)
    order = np.random.RandomState(1).permutation(4)
    assert order.tolist() != [0, 1, 2, 3]
    assert np.array_equal(-plain.reset(4)[:, order], changed.reset(4))
    random = np.random.default_rng(0)
    ends = 0
    for _ in range(60):
        actions = random.integers(2, size=2)
        a, b = plain.step(actions), changed.step(1 - actions)
        assert np.array_equal(-a.seen[:, order], b.seen)
        assert (a.ended == b.ended).all()
        ends += int(a.ended.sum())
    assert ends > 0


def test_a_change_that_is_switched_off_is_none():
    plain, off = GameSpec("CartPole-v1").make(1), GameSpec("CartPole-v1?mirror=0&reverse=0").make(1)
    assert np.array_equal(plain.reset(4), off.reset(4))
    assert np.array_equal(plain.step(np.array([1])).seen, off.step(np.array([1])).seen)


def test_changed_physics_are_another_world():
    plain, heavy = GameSpec("CartPole-v1").make(1), GameSpec("CartPole-v1?gravity=50").make(1)
    assert np.array_equal(plain.reset(4), heavy.reset(4))
    for _ in range(5):
        a, b = plain.step(np.array([1])), heavy.step(np.array([1]))
    assert not np.allclose(a.seen, b.seen)


def test_a_new_game_begins_within_the_step_and_time_that_is_up_is_no_end():
    environments = GameSpec("MountainCar-v0").make(2)
    seen = environments.reset(0)
    for number in range(1, 201):
        before = seen
        step = environments.step(np.array([1, 1]))
        seen = step.seen
        assert step.cut.all() == (number == 200)
    assert (step.ended & step.over).all()
    assert np.abs(step.last - before).max() < 0.1  # the last of the old game
    assert not np.allclose(step.last, seen)
    assert (np.abs(seen[:, 1]) == 0).all()  # at rest: the first of the next


def test_shorter_observations_are_filled_up_and_heads_fit_their_actions():
    stream = games("control", ["CartPole-v1", "Acrobot-v1"])
    assert stream.shape == (6,)
    assert [task.classes for task in stream.tasks] == [2, 3]
    seen = stream.specs[0].make(2).reset(0)
    assert seen.shape == (2, 6)
    assert not seen[:, 4:].any()


def test_an_environment_that_comes_again_has_a_name_of_its_own():
    stream = games("control", ["CartPole-v1", "Acrobot-v1", "CartPole-v1"])
    assert [task.name for task in stream.tasks] == ["CartPole-v1", "Acrobot-v1", "CartPole-v1 (3)"]


class Counting(gymnasium.Env):
    """Actions are -1, 0 and 1; what is seen is the last one, and after the third step no number."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(3, start=-1)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.steps += 1
        return np.array([np.nan if self.steps > 3 else action], np.float32), 0.0, False, False, {}


@pytest.mark.filterwarnings("ignore:.*The reward is a NaN value")
def test_rewards_that_are_no_numbers_are_refused(monkeypatch):
    class Losing(Counting):
        def step(self, action):
            return np.zeros(1, np.float32), float("nan"), False, False, {}

    monkeypatch.setitem(gymnasium.registry, "Losing-v0", gymnasium.envs.registration.EnvSpec("Losing-v0", Losing))
    environments = GameSpec("Losing-v0").make(1)
    environments.reset(0)
    with pytest.raises(ValueError, match=r"rewards must be finite, got .* from Losing-v0"):
        environments.step(np.array([0]))


@pytest.mark.filterwarnings("ignore:.*is being initialised with render_mode")
def test_an_environment_that_cannot_be_drawn_is_refused_in_a_sentence(monkeypatch):
    class Blind(Counting):
        def __init__(self, render_mode=None):
            self.render_mode = render_mode

    monkeypatch.setitem(gymnasium.registry, "Blind-v0", gymnasium.envs.registration.EnvSpec("Blind-v0", Blind))
    with pytest.raises(ValueError, match="Blind-v0 cannot be drawn: it has no render mode 'rgb_array'"):
        GameSpec("Blind-v0").make(1, pictures=True)


def test_actions_may_begin_elsewhere_and_what_is_no_number_is_refused(monkeypatch):
    monkeypatch.setitem(gymnasium.registry, "Counting-v0", gymnasium.envs.registration.EnvSpec("Counting-v0", Counting))
    plain, reverse = GameSpec("Counting-v0").make(1), GameSpec("Counting-v0?reverse=1").make(1)
    for environments, expected in ((plain, [-1, 0, 1]), (reverse, [1, 0, -1])):
        environments.reset(0)
        assert [environments.step(np.array([k])).seen[0, 0] for k in range(3)] == expected
        with pytest.raises(ValueError, match=r"observations must be finite, got .* from Counting-v0"):
            environments.step(np.array([0]))


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ([], "stream.envs must name at least one environment"),
        (["CartPole-v9"], "Gymnasium cannot make 'CartPole-v9'"),
        (["no_such_module:Bar-v0"], "Gymnasium cannot make 'no_such_module:Bar-v0': No module named"),
        (["..foo:Bar-v0"], "Gymnasium cannot make '..foo:Bar-v0'"),
        ([":Bar-v0"], "Gymnasium cannot make ':Bar-v0'"),
        (["CartPole-v1?mirror=2"], "mirror must be 0 or 1, got 2 in 'CartPole-v1.mirror=2'"),
        (["CartPole-v1?reverse=yes"], "reverse must be 0 or 1, got yes"),
        (["CartPole-v1?permute=x"], "permute must be a whole number from 0 to .*, got x"),
        (["CartPole-v1?permute=-1"], "permute must be a whole number from 0 to .*, got -1"),
        (["CartPole-v1?gravity=nan"], "gravity must be a finite number, got nan"),
        (["CartPole-v1?np_random_seed=3"], "'np_random_seed' in .* cannot be changed: the environment does not allow"),
        (["CartPole-v1?gravty=2"], "a number of the environment, got 'gravty'"),
        (["CartPole-v1?gravity=much"], "gravity must be a finite number, got much"),
        (["Blackjack-v1"], "must be vectors or numbered states, and actions a choice or an array of numbers"),
        (["CartPole-v1", "ALE/Boxing-v5"], "stream.envs must all show pictures or all vectors"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_sentence(names, sentence):
    with pytest.raises(ValueError, match=sentence):
        games("control", names)


class Pushing(gymnasium.Env):
    """Shows what was done to it."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,))
    action_space = gymnasium.spaces.Box(
        np.float32([[-2, 1], [-np.inf, 0]]), np.float32([[2, 5], [np.inf, np.inf]]), dtype=np.float32
    )

    def reset(self, seed=None, options=None):
        return np.zeros(4, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return action.flatten(), 0.0, False, False, {}


def test_numbers_go_to_their_bounds_and_no_further(monkeypatch):
    monkeypatch.setitem(gymnasium.registry, "Pushing-v0", gymnasium.envs.registration.EnvSpec("Pushing-v0", Pushing))
    for name, sign in (("Pushing-v0", 1), ("Pushing-v0?reverse=1", -1)):
        environments = GameSpec(name).make(2)
        environments.reset(0)
        done = sign * np.array([[-1, 0, 0.5, 3], [0.5, 9, -7, -2]], np.float32)
        # -2 to 2, 1 to 5, any number, 0 and more
        assert environments.step(done).seen.tolist() == [[-2, 3, 0.5, 3], [1, 5, -7, 0]]
        assert environments.actions == Numbers(4)
        environments.close()


def test_numbered_states_are_seen_as_one_of_so_many():
    environments = GameSpec("FrozenLake-v1?permute=1").make(3)
    order = np.random.RandomState(1).permutation(16)
    seen = environments.reset(0)
    assert environments.shape == (16,)
    assert environments.actions == Choice(4)
    assert seen[:, order.tolist().index(0)].tolist() == [1, 1, 1]
    for _ in range(30):
        seen = environments.step(environments.actions.at_random(3, np.random.default_rng(0))).seen
        assert (seen.sum(1) == 1).all()
        assert set(seen.flatten()) == {0, 1}
    environments.close()


def test_seeds_for_different_purposes_are_apart():
    seeds = {derived_seed(a, b, c) for a in range(5) for b in range(3) for c in range(6)}
    assert len(seeds) == 90
    assert max(seeds) + 100 < 2**31

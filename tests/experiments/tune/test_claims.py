"""Who tries what, without training anything."""

from multiprocessing import get_context

from optuna.trial import TrialState

from fedgbo.experiments.tune.claims import Watch, Worker, _take_up, beat, claim_next, drop, standing
from fedgbo.experiments.tune.study import local_url, open_study, suggest, trial_settings
from tests.experiments.tune.small import small_plan, small_study

CELLS = 15


def many_cells(**asked):
    return small_plan("lr=" + ",".join(str(k) for k in range(1, CELLS + 1)), **asked)


def finish(study, claim, rounds=8):
    study._storage.set_trial_user_attr(claim.trial_id, "cost", {"rounds": rounds})
    study._storage.set_trial_state_values(claim.trial_id, TrialState.COMPLETE, [0.5])


def claim_everything(out, plan):
    """Take all that can be had, as fast as can be."""
    study = open_study(plan, local_url(out), "small")
    with Worker(out) as me:
        while (claim := claim_next(study, plan, me, Watch())) is not None:
            suggest(study, claim.trial_id, plan, claim.index)
            finish(study, claim)


def test_two_processes_that_start_together_try_each_cell_once(tmp_path):
    plan, context = many_cells(), get_context("spawn")
    processes = [context.Process(target=claim_everything, args=(tmp_path, plan)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    trials = [t for t in small_study(plan, tmp_path).get_trials() if t.state == TrialState.COMPLETE]
    assert sorted(trial_settings(trial, plan)["lr"] for trial in trials) == list(range(1, CELLS + 1))
    assert sorted(standing(trials)) == list(range(CELLS))


def test_who_is_alive_is_left_alone_and_who_died_is_taken_up(tmp_path):
    plan = small_plan("lr=0.1,0.2")
    study = small_study(plan, tmp_path)
    with Worker(tmp_path) as other:
        theirs = claim_next(study, plan, other, Watch())
        trial, settings = suggest(study, theirs.trial_id, plan, theirs.index)
        trial.report(0.3, 1)
        with Worker(tmp_path) as me:
            mine = claim_next(study, plan, me, Watch())
            assert (theirs.index, mine.index) == (0, 1)
            assert claim_next(study, plan, me, Watch()) is None
    with Worker(tmp_path) as me:
        again = claim_next(study, plan, me, Watch())
        assert again.index == 0
        assert again.before.last_step == 1
        resumed, same = suggest(study, again.trial_id, plan, again.index)
        assert same == settings
        assert resumed._cached_frozen_trial.intermediate_values == {1: 0.3}
    assert study.trials[theirs.trial_id - 1].state == TrialState.FAIL
    assert standing(study.trials)[0]._trial_id == again.trial_id


def test_of_two_who_take_up_the_same_the_first_has_it(tmp_path):
    plan = small_plan("lr=0.1,0.2", trials=1)
    study = small_study(plan, tmp_path)
    with Worker(tmp_path) as dead:
        claim_next(study, plan, dead, Watch())
    with Worker(tmp_path) as first, Worker(tmp_path) as second:
        for worker in (first, second):  # as if both had found it at the same time
            attributes = {"worker": worker.id, "folder": worker.folder, "again": (0, 1)}
            trial = study._storage.create_new_trial(study._study_id)
            for key, value in attributes.items():
                study._storage.set_trial_user_attr(trial, key, value)
        assert standing(study.trials)[0].user_attrs["worker"] == first.id
        assert claim_next(study, plan, second, Watch()) is None


def test_a_worker_that_was_only_slow_is_believed(tmp_path):
    plan = small_plan("lr=0.1,0.2", trials=1)
    study = small_study(plan, tmp_path)
    with Worker(tmp_path) as slow:
        theirs = claim_next(study, plan, slow, Watch())
    before = study.trials[0]
    finish(study, theirs)  # after we had looked, and before we take it up
    with Worker(tmp_path) as me:
        assert _take_up(study, me, 0, before) is None
        assert claim_next(study, plan, me, Watch()) is None
    assert standing(study.trials)[0].state == TrialState.COMPLETE


def test_a_worker_elsewhere_is_known_by_its_beats(tmp_path):
    plan = small_plan("lr=0.1,0.2", trials=1)
    study = open_study(plan, local_url(tmp_path), "small")
    for name in ("there", "here"):
        (tmp_path / name).mkdir()
    watch, patient = Watch(grace=0.0), Watch(grace=60.0)
    with Worker(tmp_path / "there") as other, Worker(tmp_path / "here") as me:
        theirs = claim_next(study, plan, other, Watch())
        for number in range(1, 4):
            assert claim_next(study, plan, me, watch) is None  # another beat than the last
            beat(study, theirs.trial_id, number)
        assert claim_next(study, plan, me, watch) is None
        assert claim_next(study, plan, me, patient) is None
        assert claim_next(study, plan, me, patient) is None
        assert claim_next(study, plan, me, watch).index == 0
    beat(study, theirs.trial_id, 9)  # the one that was taken for dead does not mind


def test_a_budget_is_kept_whatever_runs_take(tmp_path):
    plan = many_cells(budget=30)  # a trial takes 8 rounds at most
    study = small_study(plan, tmp_path)
    with Worker(tmp_path) as me:
        claims = [claim_next(study, plan, me, Watch()) for _ in range(4)]
        assert [claim is not None for claim in claims] == [True, True, True, False]
        finish(study, claims[0], rounds=2)
        finish(study, claims[1], rounds=8)
        fourth = claim_next(study, plan, me, Watch())
        assert fourth.index == 3
        assert claim_next(study, plan, me, Watch()) is None
        drop(study, fourth.trial_id)
        assert claim_next(study, plan, me, Watch()).index == 3  # it failed, and is tried again


def test_a_longer_search_goes_on_where_the_shorter_ended(tmp_path):
    study = small_study(many_cells(trials=2), tmp_path)
    with Worker(tmp_path) as me:
        for index in range(3):
            claim = claim_next(study, many_cells(trials=2 if index < 2 else 3), me, Watch())
            assert claim.index == index
            finish(study, claim)
        assert claim_next(study, many_cells(trials=3), me, Watch()) is None

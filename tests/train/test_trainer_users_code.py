"""User code around a model: callbacks with state, schedulers, further optimizers, losses with parameters."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from toy_training import Recorder, make_data, make_net, make_trainer

from windlass.errors import SpecError
from windlass.train import Callback, TorchTrainer


def weights_of(trainer):
    return [p.detach().clone() for p in trainer.laid_out.model.parameters()]


def assert_same(first, second):
    assert len(first) == len(second)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


# Callbacks with state.


class Ema(Callback):
    """Running mean of the weights, created at the start as users write it."""

    def on_start(self, trainer):
        self.mean = {n: p.detach().clone() for n, p in trainer.laid_out.model.named_parameters()}
        self.num_steps = 0

    def on_step(self, trainer, step):
        self.num_steps += 1
        for name, parameter in trainer.laid_out.model.named_parameters():
            self.mean[name].lerp_(parameter.detach(), 0.1)

    def state_dict(self):
        return {"mean": self.mean, "num_steps": self.num_steps}

    def load_state_dict(self, state):
        self.mean, self.num_steps = dict(state["mean"]), state["num_steps"]


def test_callback_state_is_saved_and_restored(tmp_path):
    whole, begun, resumed = Ema(), Ema(), Ema()
    make_trainer(tmp_path / "whole", callbacks=[whole]).fit()
    make_trainer(tmp_path / "cut", callbacks=[begun], steps=4).fit()
    make_trainer(tmp_path / "cut", callbacks=[resumed]).fit()
    assert resumed.num_steps == whole.num_steps == 10
    assert_same(list(resumed.mean.values()), list(whole.mean.values()))


def test_two_callbacks_of_one_class_have_separate_states(tmp_path):
    class Counter(Callback):
        def __init__(self, count):
            self.count = count

        def on_step(self, trainer, step):
            self.count += 1

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    make_trainer(tmp_path, callbacks=[Counter(0), Counter(100)], steps=4).fit()
    counters = [Counter(0), Counter(0)]
    make_trainer(tmp_path, callbacks=counters).fit()
    assert [counter.count for counter in counters] == [10, 110]


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        ({"model": {"a": [object()]}}, r"Odd .*\['model'\]\['a'\]\[0\] is a object"),
        ({(1, 2): 3}, r"Odd .*state_dict\(\) is a dict"),
        ({"f": make_net}, r"Odd .*\['f'\] is a function"),
    ],
    ids=["object", "key", "function"],
)
def test_callback_state_that_needs_code_to_load_is_refused(tmp_path, state, shown):
    class Odd(Callback):
        def state_dict(self):
            return state

    with pytest.raises(SpecError, match=shown):
        make_trainer(tmp_path, callbacks=[Odd()]).fit()


def test_added_and_removed_callbacks_are_logged(tmp_path, caplog):
    make_trainer(tmp_path, steps=4).fit()
    ema = Ema()
    make_trainer(tmp_path, steps=6, callbacks=[ema]).fit()
    assert ema.num_steps == 2
    assert "step 4 has no state of the callbacks, which starts from scratch" in caplog.text
    make_trainer(tmp_path, steps=8).fit()
    assert "the state of the callbacks in step 6 is not used" in caplog.text


# Schedulers.


class Rates(Callback):
    def __init__(self):
        self.rates = []

    def on_step(self, trainer, step):
        self.rates.append(trainer.optimizer.param_groups[0]["lr"])


def make_plateau(optimizer):
    return ReduceLROnPlateau(optimizer, factor=0.1, patience=0, threshold=1e9)


def test_reduce_lr_on_plateau_steps_after_each_validation(tmp_path):
    settings = {"scheduler": make_plateau, "validation": make_data(8, seed=2), "epochs": 4}
    rates = Rates()
    make_trainer(tmp_path / "whole", callbacks=[rates], lr=0.1, **settings).fit()
    assert rates.rates == pytest.approx([0.1 ** (1 + step // 5) for step in range(20)])
    later = Rates()
    make_trainer(tmp_path / "cut", lr=0.1, **{**settings, "steps": 7}).fit()
    make_trainer(tmp_path / "cut", callbacks=[later], lr=0.1, **settings).fit()
    assert later.rates == rates.rates[7:]


def test_plateau_mode_must_match_best_mode(tmp_path):
    settings = {"scheduler": lambda o: ReduceLROnPlateau(o, "max"), "validation": make_data(8)}
    with pytest.raises(SpecError, match=r"mode='max', but best is 'min'"):
        make_trainer(tmp_path, **settings).fit()


class SetsRate(Callback):
    """Sets a rate after a validation, as a callback's scheduler would."""

    def on_validation(self, trainer, metrics):
        for group in trainer.optimizer.param_groups:
            group["lr"] *= 0.5


def test_rate_set_by_callback_is_kept_and_resumed(tmp_path):
    settings = {"validation": make_data(8), "epochs": 3}
    rates = Rates()
    make_trainer(tmp_path / "whole", callbacks=[SetsRate(), rates], lr=0.1, **settings).fit()
    assert rates.rates == pytest.approx([0.1] * 5 + [0.05] * 5 + [0.025] * 5)
    later = Rates()
    cut = {**settings, "callbacks": [SetsRate(), later], "lr": 0.1}
    make_trainer(tmp_path / "cut", **{**cut, "steps": 7}).fit()
    make_trainer(tmp_path / "cut", **cut).fit()
    assert later.rates == rates.rates


def test_rate_that_a_schedule_would_overwrite_is_refused(tmp_path):
    with pytest.raises(SpecError, match="the schedule 'cosine' would reset it"):
        make_trainer(
            tmp_path, scheduler="cosine", validation=make_data(8), callbacks=[SetsRate()]
        ).fit()


def test_warm_up_with_a_scheduler_is_refused(tmp_path):
    with pytest.raises(SpecError, match="warmup=3 cannot be combined with your own scheduler"):
        make_trainer(
            tmp_path, scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 1), warmup=3
        ).fit()


# Further optimizers.


class Gan(TorchTrainer):
    """Two nets. The trainer steps one, and train_step steps the other."""

    def create_model_loss_optimizer(self):
        self.model = nn.ModuleDict({"g": nn.Linear(4, 6), "d": nn.Linear(6, 1)})
        self.loss = None
        self.optimizer = torch.optim.Adam(self.model["g"].parameters(), lr=1e-2)
        self.optimizer_d = torch.optim.Adam(self.model["d"].parameters(), lr=1e-2)

    def train_step(self, batch, batch_idx):
        real = batch[0]
        fake = self.model["g"](torch.randn(len(real), 4))
        judge, bce = self.model["d"], nn.functional.binary_cross_entropy_with_logits
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        self.optimizer_d.zero_grad()
        (bce(judge(real), ones) + bce(judge(fake.detach()), zeros)).backward()
        self.optimizer_d.step()
        return bce(judge(fake), ones)


def test_second_optimizer_is_saved_and_restored(tmp_path):
    settings = {"kind": Gan, "model": None, "loss": None}
    whole = make_trainer(tmp_path / "whole", **settings)
    whole.fit()
    make_trainer(tmp_path / "cut", steps=4, **settings).fit()
    resumed = make_trainer(tmp_path / "cut", **settings)
    assert resumed.fit().resumed_from == 4
    assert_same(weights_of(resumed), weights_of(whole))


def test_parameter_in_two_optimizers_is_refused(tmp_path):
    class Twice(Gan):
        def create_model_loss_optimizer(self):
            super().create_model_loss_optimizer()
            self.optimizer = "adamw"

    with pytest.raises(SpecError, match=r"self\.optimizer_d trains d\.weight, and so does"):
        make_trainer(tmp_path, kind=Twice, model=None, loss=None).fit()


@pytest.mark.parametrize(
    ("optimizer", "shown"),
    [
        ([torch.optim.SGD, torch.optim.AdamW], "optimizer cannot be a list"),
        (torch.optim.LBFGS, "LBFGS evaluates the loss several times in a step"),
        (lambda ps: torch.optim.LBFGS(list(ps)), "LBFGS evaluates the loss several times"),
    ],
    ids=["list", "LBFGS", "made LBFGS"],
)
def test_optimizers_that_cannot_be_used_are_refused(tmp_path, optimizer, shown):
    class OneGroup(TorchTrainer):
        """Trainer that passes LBFGS plain parameters, because it does not accept parameter groups."""

        def create_model_loss_optimizer(self):
            super().create_model_loss_optimizer()
            if self.optimizer is torch.optim.LBFGS:
                self.optimizer = torch.optim.LBFGS(self.model.parameters())

    with pytest.raises(SpecError, match=shown):
        make_trainer(tmp_path, kind=OneGroup, optimizer=optimizer).fit()


def test_lbfgs_as_a_class_is_refused_before_creation(tmp_path):
    with pytest.raises(SpecError, match="LBFGS evaluates the loss several times in a step"):
        make_trainer(tmp_path, optimizer=torch.optim.LBFGS).fit()


def test_several_validation_sets_are_refused(tmp_path):
    with pytest.raises(SpecError, match="the validation data is a dict of a, b"):
        make_trainer(tmp_path, validation={"a": make_data(8), "b": make_data(8)}).fit()


# A loss with parameters.


class Scaled(nn.Module):
    """Learns a scale and counts its calls."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("num_calls", torch.zeros((), dtype=torch.long))

    def forward(self, output, target):
        self.num_calls += 1
        return nn.functional.cross_entropy(output * self.scale, target)


@pytest.mark.parametrize(
    "optimizer",
    ["adamw", torch.optim.SGD, lambda params: torch.optim.Adam(params, lr=1e-2)],
    ids=["name", "class", "function"],
)
def test_loss_parameters_are_trained_and_resumed(tmp_path, optimizer):
    whole, begun, resumed = Scaled(), Scaled(), Scaled()
    make_trainer(tmp_path / "whole", loss=whole, optimizer=optimizer).fit()
    assert whole.scale.item() != 1.0
    make_trainer(tmp_path / "cut", loss=begun, optimizer=optimizer, steps=4).fit()
    make_trainer(tmp_path / "cut", loss=resumed, optimizer=optimizer).fit()
    assert torch.equal(resumed.scale, whole.scale)
    assert resumed.num_calls == whole.num_calls == 10


def test_optimizer_may_include_loss_parameters(tmp_path):
    class Both(TorchTrainer):
        def create_model_loss_optimizer(self):
            super().create_model_loss_optimizer()
            parameters = [*self.model.parameters(), *self.loss.parameters()]
            self.optimizer = torch.optim.SGD(parameters, lr=0.1)

    loss = Scaled()
    make_trainer(tmp_path, kind=Both, loss=loss).fit()
    assert loss.scale.item() != 1.0


# Metrics of train_step.


class Metered(TorchTrainer):
    def train_step(self, batch, batch_idx):
        loss = super().train_step(batch, batch_idx)
        return loss, {"twice": 2 * loss.detach(), "num_rows": len(batch[0]), "loss": loss.detach()}


@pytest.mark.parametrize("micro_batch", [None, 3])
def test_metrics_of_train_step_are_logged_like_the_loss(tmp_path, micro_batch):
    seen = {}

    class Logged(Callback):
        def on_log(self, trainer, step, metrics):
            seen[step] = dict(metrics)

    make_trainer(
        tmp_path, kind=Metered, callbacks=[Logged()], micro_batch=micro_batch, log_every=2
    ).fit()
    assert all(m["twice"] == pytest.approx(2 * m["loss"], rel=1e-6) for m in seen.values())
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [one["metrics"]["twice"] for one in lines if one["event"] == "metrics"] == [
        m["twice"] for m in seen.values()
    ]


def test_a_resumed_run_logs_the_same_metrics(tmp_path):
    def run(out, **settings):
        lines = []

        class Logged(Callback):
            def on_log(self, trainer, step, metrics):
                lines.append((step, metrics["twice"]))

        settings = {"kind": Metered, "callbacks": [Logged()], "log_every": 4, **settings}
        make_trainer(tmp_path / out, **settings).fit()
        return lines

    whole = run("whole")
    run("cut", steps=6)
    assert run("cut") == whole[1:]


@pytest.mark.parametrize(
    ("metrics", "shown"),
    [
        (lambda step: {"lr": 1.0}, "returned a metric 'lr', which the trainer logs itself"),
        (lambda step: {"rows": torch.ones(3)}, r"returned a metric 'rows' of \[3\]"),
        (lambda step: {f"at {step}": 1.0}, "returned the metrics at 1 here, but at 0 before"),
    ],
    ids=["taken", "vector", "others"],
)
def test_metrics_that_cannot_be_logged_are_refused(tmp_path, metrics, shown):
    class Odd(TorchTrainer):
        def train_step(self, batch, batch_idx):
            return super().train_step(batch, batch_idx), metrics(self.progress.step)

    with pytest.raises(SpecError, match=shown):
        make_trainer(tmp_path, kind=Odd).fit()


# Modes of modules.


def make_normed():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


class Modes(Callback):
    def __init__(self, *, freezes):
        self.freezes, self.modes = freezes, []

    def on_start(self, trainer):
        if self.freezes:
            trainer.laid_out.model[1].eval()

    def on_step(self, trainer, step):
        model = trainer.laid_out.model
        self.modes.append((model.training, model[0].training, model[1].training))


def test_module_in_eval_mode_stays_so_after_validation(tmp_path):
    modes = Modes(freezes=True)
    make_trainer(tmp_path, model=make_normed, validation=make_data(8), callbacks=[modes]).fit()
    assert set(modes.modes) == {(True, True, False)}


def test_module_created_in_eval_mode_stays_so(tmp_path):
    def make_frozen():
        model = make_normed()
        model[1].eval()
        return model

    modes = Modes(freezes=False)
    make_trainer(tmp_path, model=make_frozen, validation=make_data(8), callbacks=[modes]).fit()
    assert set(modes.modes) == {(True, True, False)}


def test_model_created_in_eval_mode_is_trained(tmp_path):
    """`from_pretrained` returns models in eval mode."""
    modes = Modes(freezes=False)
    make_trainer(tmp_path, model=lambda: make_normed().eval(), callbacks=[modes]).fit()
    assert set(modes.modes) == {(True, True, True)}


def test_metrics_do_not_change_recorded_losses(tmp_path):
    plain, metered = Recorder(), Recorder()
    make_trainer(tmp_path / "plain", recorder=plain).fit()
    make_trainer(tmp_path / "metered", recorder=metered, kind=Metered).fit()
    assert metered.losses == plain.losses


# Attributes that are set too late, and modules that a subclass keeps.


@pytest.mark.parametrize("attribute", ["optimizer", "scheduler", "lr_scheduler", "optimizer_d"])
def test_optimizer_or_scheduler_set_too_late_is_refused(tmp_path, attribute):
    class Late(Callback):
        def on_start(self, trainer):
            optimizer = torch.optim.SGD(trainer.laid_out.model.parameters(), lr=0.1)
            is_rate = "scheduler" in attribute
            made = torch.optim.lr_scheduler.StepLR(optimizer, 1) if is_rate else optimizer
            setattr(trainer, attribute, made)

    with pytest.raises(SpecError, match=rf"self\.{attribute} was set after TorchTrainer's parts"):
        make_trainer(tmp_path, callbacks=[Late()]).fit()


def test_optimizer_created_in_a_step_is_refused_before_saving(tmp_path):
    class Lazy(TorchTrainer):
        def train_step(self, batch, batch_idx):
            self.optimizer_d = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
            return super().train_step(batch, batch_idx)

    with pytest.raises(SpecError, match=r"self\.optimizer_d was set after Lazy's parts"):
        make_trainer(tmp_path, kind=Lazy).fit()


class Keeping(TorchTrainer):
    """Trainer that keeps a module as an attribute."""

    kept: nn.Module | None = None

    def create_model_loss_optimizer(self):
        super().create_model_loss_optimizer()
        self.kept = self.make_kept()


def test_loss_that_is_a_subclass_attribute_causes_warning(tmp_path, caplog):
    class Own(Keeping):
        make_kept = staticmethod(Scaled)

        def train_step(self, batch, batch_idx):
            return self.kept(self.model(batch[0]), batch[1])

    make_trainer(tmp_path, kind=Own).fit()
    assert "Own: self.kept has parameters that get gradients, but no optimizer" in caplog.text
    assert caplog.text.count("has parameters that get gradients") == 1


def test_unsaved_mean_of_weights_causes_warning(tmp_path, caplog):
    class Mean(Keeping):
        def make_kept(self):
            return torch.optim.swa_utils.AveragedModel(self.model)

        def train_step(self, batch, batch_idx):
            if self.progress.step == 3:
                self.kept.update_parameters(self.model)
            return super().train_step(batch, batch_idx)

    make_trainer(tmp_path, kind=Mean).fit()
    assert "Mean: self.kept changes during training, but checkpoints do not contain" in caplog.text


def test_teacher_model_causes_no_warning(tmp_path, caplog):
    class Taught(Keeping):
        make_kept = staticmethod(make_net)

        def train_step(self, batch, batch_idx):
            with torch.no_grad():
                self.kept(batch[0])
            return super().train_step(batch, batch_idx)

    make_trainer(tmp_path, kind=Taught).fit()
    assert "self.kept" not in caplog.text


def test_state_keys_with_equal_spelling_keep_their_own_tensors(tmp_path):
    class Both(Callback):
        def state_dict(self):
            return {"a.b": {"c": torch.ones(1)}, "a": {"b.c": torch.zeros(1)}}

        def load_state_dict(self, state):
            self.loaded = state

    both = Both()
    make_trainer(tmp_path, callbacks=[both], steps=4).fit()
    make_trainer(tmp_path, callbacks=[both]).fit()
    assert both.loaded == {"a.b": {"c": torch.ones(1)}, "a": {"b.c": torch.zeros(1)}}

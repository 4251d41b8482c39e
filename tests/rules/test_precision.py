"""The precision rules over traces written by hand: what each reports, and the look-alikes it must leave alone."""

from __future__ import annotations

import pytest

from fallline.events import Scaler, Strength
from fallline.rules import rule_by_code
from fallline.verdict import judge
from traces import codes, trace

B = "B(scaled)"
OFF = (Scaler("scaler", enabled=False),)
PAIR = {
    "d": {"type": "Adam", "parameters": frozenset("D")},
    "g": {"type": "Adam", "parameters": frozenset("G")},
}
UNKNOWN = {"d": {"type": "Adam"}, "g": {"type": "Adam"}}
S = "S(via=scaler)"


def found(code: str, text: str, optimizers=None, objects=(), **how) -> set[str]:
    rule = rule_by_code(code)
    assert rule is not None
    return codes(rule, trace(text, optimizers, objects, **how))


@pytest.mark.parametrize(
    ("code", "text", "reported"),
    [
        ("FL201", f"Z F {B} C {S} G " * 2, {"C"}),
        ("FL201", f"Z [F {B}]*2 C(how=value) {S} G", {"C"}),
        ("FL202", f"Z F {B} U C U2 {S} G", {"U2"}),
        ("FL202", f"Z F {B} {S} U G", {"U"}),
        ("FL203", f"Z F {B} S " * 2, {"S"}),
        ("FL203", f"Z F {B} U C S G " * 2, {"S"}),
        ("FL204", f"Z F {B} {S} " * 2, {"S"}),
        ("FL204", f"Z F {B} U C {S} Z F {B} U", {"S"}),
        ("FL205", "Z F(autocast=float16) B(autocast=float16) S", {"B"}),
        ("FL206", f"Z F(autocast=bfloat16) {B} {S} G", {"B"}),
        ("FL207", "Z F(autocast=float16) B S", {"B"}),
        ("FL207", "Z F(autocast=float16) F2(autocast=off) B1 B2 S", {"B1", "B2"}),
        ("FL208", f"Z F B(scaled, half_parameters) {S} G", {"B"}),
        ("FL211", f"Z F {B} R(what=norm) {S} G", {"R"}),
        ("FL211", f"Z F {B} C(threshold=inf) {S} G", {"C"}),
        ("FL212", f"Z [F {B} U]*2 {S} G", {"U"}),
        ("FL212", f"Z F B1(scaled) U F B2(scaled) {S} G", {"U"}),
        ("FL213", f"Z F {B} G F {B} {S} G2", {"G"}),
        ("FL213", f"Z F {B} U G F {B} {S} G2", {"G"}),
        ("FL214", f"Z F {B} {S} G L(per=batch, !checked)", {"L"}),
        (
            "FL215",
            "F AUTOCAST_OFF(half) B S".replace("AUTOCAST_OFF", "autocast_off"),
            {"autocast_off"},
        ),
    ],
)
def test_reported(code: str, text: str, reported: set[str]) -> None:
    assert found(code, text) == reported


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("FL201", f"Z F {B} U C {S} G " * 2),
        ("FL201", f"Z F {B} C(threshold=inf) {S} G"),  # only measures: FL211
        ("FL201", f"Z F {B} {S} C G"),  # after the step nothing is scaled: FL101
        ("FL201", f"Z F B(scaled=None) C {S} G"),  # not known
        ("FL201", f"Z F {B} O C {S} G"),  # whatever was called may have unscaled
        ("FL201", f"Z F {B} W(op=div) C {S} G"),  # unscaled by hand
        ("FL202", f"Z F {B} U C {S} G " * 3),
        ("FL202", f"Z F {B} U O U2 {S} G"),
        ("FL203", f"Z F {B} {S} G " * 2),
        ("FL203", "Z F B S " * 2),
        ("FL203", f"Z F {B} W(op=div) S"),
        ("FL203", f"Z F {B} O S"),
        ("FL204", f"Z F {B} {S} G " * 2),
        ("FL204", f"Z F {B} {S}"),  # one step, in a method of its own: the caller may update
        ("FL204", f"Z F {B} {S} O Z F {B} {S} O"),
        ("FL204", f"Z F {B} {S} U C G"),  # FL202
        ("FL205", "Z F(autocast=float16) B(autocast=off) S"),
        ("FL205", "Z F(autocast=float16) B S"),
        ("FL206", f"Z F(autocast=float16) {B} {S} G"),
        ("FL206", f"Z F {B} {S} G"),
        ("FL206", "Z F(autocast=bfloat16) B S"),
        ("FL207", "Z F(autocast=bfloat16) B S"),
        ("FL207", "Z F(autocast=float16) B(scaled=None) S"),
        ("FL207", "Z F(autocast=float16) B W(op=div) S"),  # a fixed scale, taken out by hand
        ("FL207", "Z F(autocast=float16, !grad) F2 B S"),  # a teacher
        ("FL207", "Z F(autocast=float16, !used) F2 B S"),
        ("FL207", "Z F(autocast=float16) B(normalised=accelerate) S"),
        ("FL207", "Z F(autocast=float16) B R(what=input)"),  # an attack: nothing is stepped
        ("FL208", f"Z F {B} {S} G"),
        ("FL208", "Z F B(half_parameters) S"),
        ("FL211", f"Z F {B} U R(what=norm) {S} G"),
        ("FL211", f"Z F {B} {S} G R(what=norm)"),
        ("FL211", f"Z F {B} R(what=input) {S} G"),
        ("FL212", f"Z [F {B}]*2 U {S} G " * 2),
        ("FL212", f"Z F {B} U Z F {B} U {S} G"),
        ("FL213", f"Z [F {B}]*2 {S} G " * 2),
        ("FL213", f"Z F {B} O G F {B} {S} G2"),
        ("FL214", f"Z F {B} {S} G L(per=batch, checked)"),
        ("FL214", f"Z F {B} {S} G L(per=epoch, !checked)"),
        ("FL214", "Z F B S L(per=batch, !checked)"),
        ("FL214", f"Z F {B} {S} G L(per=batch)"),
        ("FL214", f"Z F {B} {S} G L(per=batch, !checked, explicit)"),
    ],
)
def test_silent(code: str, text: str) -> None:
    assert found(code, text) == set()


@pytest.mark.parametrize("code", ["FL202", "FL204", "FL213"])
def test_a_scaler_that_is_off_does_nothing(code: str) -> None:
    text = (
        "Z F B U(scaler=scaler) U(scaler=scaler) S(via=scaler, scaler=scaler) F B G(scaler=scaler) "
        * 2
    )
    assert found(code, text, None, OFF) == set()


def test_each_optimizer_has_its_own_gradients() -> None:
    one_unscaled = "Z:d B(scaled, parameters=D) U:d Z:g B2(scaled, parameters=G) C(parameters=D) S:d(via=scaler) C2(parameters=G) S:g(via=scaler) G"
    assert found("FL201", one_unscaled, PAIR) == {"C2"}
    assert found("FL202", "B(scaled) U:d U:g S:d(via=scaler) S:g(via=scaler) G", PAIR) == set()
    shared_update = (
        "Z:d B(scaled, parameters=D) S:d(via=scaler) Z:g B2(scaled, parameters=D+G) S:g(via=scaler) G "
        * 2
    )
    assert found("FL204", shared_update, PAIR) == set()
    assert found("FL213", shared_update, PAIR) == set()


def test_not_knowing_whose_parameters_are_clipped_means_silence() -> None:
    assert found("FL201", "B(scaled) U:d C S:d(via=scaler) S:g(via=scaler) G", UNKNOWN) == set()
    assert found("FL201", "B(scaled) C S:d(via=scaler) S:g(via=scaler) G", UNKNOWN) == {"C"}


def test_a_critic_stepped_more_often_is_not_an_update_in_the_window() -> None:
    critic = "Z:d B(scaled, parameters=D) S:d(via=scaler) G "
    text = critic * 3 + "Z:g B2(scaled, parameters=D+G) S:g(via=scaler) G2 " + critic * 3
    assert found("FL213", text, PAIR) == set()
    assert (
        found("FL213", text.replace(", parameters=D+G", "").replace(", parameters=D", ""), UNKNOWN)
        == set()
    )


def test_an_optimizer_made_for_half_parameters_unscales_them_itself() -> None:
    made_for_half = {"opt": {"type": "FusedMixedPrecisionLamb"}}
    assert found("FL208", "B(scaled, half_parameters) S(via=scaler)", made_for_half) == set()
    assert found("FL208", "B(scaled, half_parameters) U S(via=scaler)", made_for_half) == {"B"}


def test_master_copies_are_not_half() -> None:
    held = {"opt": {"type": "AdamW", "parameters": frozenset({"master"})}}
    assert (
        found("FL208", "B(scaled, half_parameters, parameters=model) S(via=scaler)", held) == set()
    )


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("FL206", f"Z F(autocast=bfloat16) {B} {S} G"),
        ("FL207", "Z F(autocast=float16) B S"),
        ("FL208", f"Z F B(scaled, half_parameters) {S} G"),
    ],
)
def test_a_scaler_that_was_only_assumed_proves_nothing(code: str, text: str) -> None:
    rule = rule_by_code(code)
    assert rule is not None
    made = trace(text)
    assert list(rule.check(made))
    made.settings = ("scaler is not None is true",)
    assert not list(rule.check(made))


def test_a_scaler_that_a_switch_turned_off_is_there() -> None:
    rule = rule_by_code("FL207")
    assert rule is not None
    made = trace("Z F(autocast=float16) B S", None, OFF)
    assert list(rule.check(made))
    made.settings = ("args.fp16 is false",)
    assert not list(rule.check(made))


def test_a_live_run_that_crashes_shows_only_its_beginning() -> None:
    assert found("FL204", f"Z F {B} {S} Z F {B}", complete=False, live=True) == {"S"}
    assert found("FL202", f"Z F {B} U C U2", complete=False, live=True) == {"U2"}
    assert found("FL212", f"Z F {B} U F {B} U", complete=False, live=True) == {"U"}
    assert found("FL213", f"Z F {B} G", complete=False, live=True) == {"G"}


def test_a_live_run_sees_the_skip_itself() -> None:
    assert found("FL214", f"Z F {B} S(via=scaler, skipped) G L(per=batch)", live=True) == {"L"}
    assert found("FL214", f"Z F {B} S(via=scaler, !skipped) G L(per=batch)", live=True) == set()


@pytest.mark.parametrize(
    ("optimizer", "words", "severity"),
    [
        ("SGD", "65,000 times too small", "error"),
        ("AdamW", "only the direction", "warning"),
        ("SomebodysOwn", "moves with the scale", "error"),
    ],
)
def test_the_harm_depends_on_the_optimizer(optimizer: str, words: str, severity: str) -> None:
    rule = rule_by_code("FL201")
    assert rule is not None
    (finding,) = rule.check(trace(f"Z F {B} C {S} G", {"opt": {"type": optimizer}}))
    assert words in finding.message and finding.severity.value == severity


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (f"Z [F {B} U]*2 {S} G", "FL212"),
        (f"Z F {B} U C {S} Z F {B} U C {S}", "FL204"),
        (f"Z [F {B} U G]*2 {S} G2", "FL212"),
    ],
)
def test_one_cause_one_code(text: str, code: str) -> None:
    ours = {f.code for f in judge(trace(text)) if f.code.startswith("FL2")}
    assert ours == {code}


def test_an_optimizer_that_is_never_stepped_again_has_no_window() -> None:
    first = "Z:a F B(scaled, parameters=M) S:a(via=scaler) G "
    held = {"a": {"parameters": frozenset("M")}, "b": {"parameters": frozenset("M")}}
    assert found("FL213", first * 2 + first.replace(":a", ":b") * 2, held) == set()


def test_items_of_a_list_made_out_of_sight_may_be_one_optimizer() -> None:
    items = {"a": {"strength": Strength.PRESUMED}, "b": {"strength": Strength.PRESUMED}}
    assert found("FL201", "B(scaled) U:a C S:b(via=scaler) G", items) == set()
    assert found("FL201", "B(scaled) C S:b(via=scaler) G", items) == {"C"}


def test_a_scaler_made_out_of_sight_may_not_be_torchs() -> None:
    own = (Scaler("own", strength=Strength.PRESUMED),)
    assert (
        found("FL208", "B(scaled, half_parameters, scaler=own) S(via=scaler)", None, own) == set()
    )

"""Each widget driven by mouse and by keyboard: Python's value, what is drawn, what is said and the other view agree."""

from typing import Any

import pytest
from jupyter_page import SHOWN, LessonPage, until

pytestmark = pytest.mark.browser


@pytest.fixture(autouse=True)
def no_fault(widgets: LessonPage) -> Any:
    """Whatever a test does, the page's console stays clean and nothing is asked of a network."""
    yield
    assert not widgets.faults, "\n".join(widgets.faults)


def status(view: Any) -> str:
    return view.locator("[role=status]").first.inner_text()


def said(view: Any, words: str) -> None:
    until(lambda: words in status(view), f"expected {words!r}, it says {status(view)!r}", 5)


def both(widgets: LessonPage, name: str) -> list[Any]:
    return [widgets.view(name, which) for which in (0, 1)]


# CacheGrowth

NEW = "#E69F00"
GROWTH = 2 * 2  # layers x KV heads of the traced model


def growth_is_at(widgets: LessonPage, step: int) -> None:
    """Python, the slider, the words, the table and the drawn columns of both views tell of one step."""
    widgets.expect("growth.step", step)
    n_new = [0, 5, 1, 1, 1][step]
    for view in both(widgets, "growth"):
        said(view, "Before the run" if step == 0 else f"Step {step} of 4, {'prefill' if step == 1 else 'decode'}.")
        assert view.locator("input[type=range]").input_value() == str(step)
        assert view.locator("output").first.inner_text() == f"{step} / 4"
        panels = view.locator(".kvlab-panel")
        for panel in panels.all():
            assert panel.locator(f"svg rect[fill='{NEW}']").count() == n_new * GROWTH
        so_far = panels.nth(0).locator("table tr").nth(1).locator("td").nth(1).inner_text()
        assert so_far == str(2 * sum([0, 5, 1, 1, 1][: step + 1]))


def test_growth_by_mouse(widgets: LessonPage) -> None:
    view = widgets.view("growth")
    view.get_by_role("button", name="Step").click()
    growth_is_at(widgets, 1)
    view.get_by_role("button", name="Step").click()
    growth_is_at(widgets, 2)
    view.get_by_role("button", name="Back").click()
    growth_is_at(widgets, 1)
    slider = view.locator("input[type=range]")
    box = slider.bounding_box()
    widgets.page.mouse.click(box["x"] + box["width"] - 3, box["y"] + box["height"] / 2)
    growth_is_at(widgets, 4)


def test_growth_by_keyboard(widgets: LessonPage) -> None:
    stage = widgets.view("growth", 1).locator(".kvlab-stage")
    stage.focus()
    for key, step in [("Home", 0), ("ArrowRight", 1), ("ArrowUp", 2), ("ArrowLeft", 1), ("End", 4), ("Home", 0)]:
        widgets.page.keyboard.press(key)
        growth_is_at(widgets, step)
    assert stage.evaluate("e => e === document.activeElement"), "a key took the focus away"


def test_growth_plays_and_pauses_with_space(widgets: LessonPage) -> None:
    view = widgets.view("growth")
    view.locator("select").select_option("5")
    view.locator(".kvlab-stage").focus()
    widgets.page.keyboard.press("Home")
    widgets.page.keyboard.press(" ")
    until(lambda: widgets.python("growth.step") >= 2, "it does not play", 5)
    widgets.page.keyboard.press(" ")
    widgets.page.wait_for_timeout(100)
    paused = widgets.python("growth.step")
    widgets.page.wait_for_timeout(500)
    growth_is_at(widgets, paused)


def test_tab_reaches_the_growth_widget(widgets: LessonPage) -> None:
    view = widgets.view("growth")
    view.locator("select").focus()
    widgets.page.keyboard.press("Tab")
    assert view.locator(".kvlab-stage").evaluate("e => e === document.activeElement")


def test_python_moves_every_view(widgets: LessonPage) -> None:
    widgets.python("growth.set_trait('step', 3)")
    growth_is_at(widgets, 3)


# MaskDiagram


def cell(view: Any, row: int, column: int, n_total: int = 7) -> Any:
    cells = view.locator(".kvlab-panel").first.locator("svg rect[fill]")
    return cells.nth(row * n_total + column)


@pytest.mark.parametrize("name", ["fixed", "mask"])
def test_a_mask_by_mouse(widgets: LessonPage, name: str) -> None:
    cell(widgets.view(name), 1, 3).hover()
    widgets.expect(f"[{name}.row, {name}.column]", [1, 3])
    for view in both(widgets, name):
        said(view, "Query at position 5 may see keys 0-1, expected keys 0-5. Key 3: hidden, expected visible.")
        ring, under = view.locator(".kvlab-ring").first.bounding_box(), cell(view, 1, 3).bounding_box()
        assert abs(ring["x"] - under["x"]) < 4 and abs(ring["y"] - under["y"]) < 4


def test_a_mask_by_keyboard(widgets: LessonPage) -> None:
    widgets.view("fixed", 1).locator(".kvlab-stage").focus()
    for key, place in [
        ("Home", [1, 0]), ("ArrowDown", [2, 0]), ("ArrowRight", [2, 1]), ("End", [2, 6]), ("PageUp", [0, 6])
    ]:  # fmt: skip
        widgets.page.keyboard.press(key)
        widgets.expect("[fixed.row, fixed.column]", place)
    for view in both(widgets, "fixed"):
        said(view, "Query at position 4 may see key 0, expected keys 0-4. Key 6: hidden.")


def test_the_sliders_of_a_mask(widgets: LessonPage) -> None:
    sliders = widgets.view("mask").locator("input[type=range]")
    sliders.nth(0).focus()
    widgets.page.keyboard.press("ArrowLeft")
    widgets.expect("[mask.n_new, mask.n_total]", [2, 7])
    sliders.nth(1).focus()
    widgets.page.keyboard.press("ArrowRight")
    widgets.expect("[mask.n_new, mask.n_total]", [2, 8])
    for view in both(widgets, "mask"):
        until(lambda v=view: v.locator(".kvlab-panel").first.locator("svg rect[fill]").count() == 16, "not redrawn", 5)
        assert [box.input_value() for box in view.locator("input[type=range]").all()] == ["2", "8"]
        assert (
            view.locator(".kvlab-note").inner_text() == f"{widgets.python('mask.data')['n_differ']} of 16 cells differ."
        )


def test_a_size_of_its_own_has_a_slider(widgets: LessonPage) -> None:
    view = widgets.view("sinks", 1)
    assert view.locator("label").all_text_contents() == ["n_new 6", "n_total 12", "window 4", "n_sinks 2"]
    view.locator("input[type=range]").nth(3).focus()
    widgets.page.keyboard.press("ArrowRight")
    widgets.expect("[sinks.sizes, sinks.data['sizes']]", [{"window": 4, "n_sinks": 3}] * 2)
    widgets.page.keyboard.press("Home")
    widgets.expect("sinks.data['n_differ']", 0)
    for view in both(widgets, "sinks"):
        until(lambda v=view: v.locator(".kvlab-note").inner_text() == "0 of 72 cells differ.", "not redrawn", 5)
        assert view.locator("input[type=range]").nth(3).input_value() == "0"
    widgets.python("sinks.set_trait('sizes', {'window': 0, 'n_sinks': 2})")
    for view in both(widgets, "sinks"):
        said(view, "No mask for 6 new and 12 in all, window 0, n_sinks 2: ValueError: window: expected a whole number")
    widgets.python("sinks.set_trait('sizes', {'window': 4, 'n_sinks': 2})")


# The explorers


def agrees(widgets: LessonPage, name: str, **values: Any) -> None:
    """Python has these values; both views show Python's scene, say its words and set their controls to its values."""
    for trait, value in values.items():
        widgets.expect(f"{name}.{trait}", value)
    data = widgets.python(f"{name}.data")
    words = [text for tag, _, text in data["shapes"] if tag == "text"]
    for view in both(widgets, name):
        until(lambda v=view: v.locator("svg text").all_text_contents() == words, "another picture is drawn", 5)
        said(view, data["said"])
        assert (
            view.locator(".kvlab-stage").get_attribute("aria-label") == data["alt"] == widgets.python(f"repr({name})")
        )
        assert view.locator("svg > :not(text):not(.kvlab-place):not(.kvlab-ring)").count() >= len(data["shapes"]) - len(
            words
        )
        for control in data["controls"]:
            at = widgets.python(f"{name}.{control['name']}")
            shown = control["shown"][control["options"].index(at)] if at in control["options"] else control["at"]
            label = view.locator("label", has_text=control["label"])
            if control["kind"] == "select":
                assert label.locator("select").evaluate("e => e.selectedOptions[0].textContent") == shown
            elif control["kind"] != "keys":
                assert label.locator("output").inner_text() == shown
                assert label.locator("input").get_attribute("aria-valuetext") == shown


def press(widgets: LessonPage, name: str, *keys: str) -> None:
    stage = widgets.view(name, 1).locator(".kvlab-stage")
    stage.focus()
    for key in keys:
        widgets.page.keyboard.press(key)
    assert stage.evaluate("e => e === document.activeElement"), "a key took the focus away"


def slide(widgets: LessonPage, name: str, label: str, share: float) -> None:
    """Click on a slider at this share of its length."""
    slider = widgets.view(name).locator("label", has_text=label).locator("input")
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    widgets.page.mouse.click(box["x"] + 8 + share * (box["width"] - 16), box["y"] + box["height"] / 2)


def point(widgets: LessonPage, name: str, place: int) -> None:
    widgets.view(name).locator(".kvlab-place").nth(place).hover()


def test_heads_by_mouse(widgets: LessonPage) -> None:
    point(widgets, "heads", 6)
    agrees(widgets, "heads", head=6)
    said(widgets.view("heads"), "Query head 6 reads KV head 0, with 0, 2, 4. It should read KV head 1.")
    widgets.view("heads").locator("select").select_option("interleave")
    agrees(widgets, "heads", order="interleave", reads=[0, 0, 0, 0, 1, 1, 1, 1])
    slide(widgets, "heads", "KV heads", 1.0)
    agrees(widgets, "heads", n_kv_heads=8, reads=list(range(8)))


def test_heads_by_keyboard(widgets: LessonPage) -> None:
    widgets.python("[heads.set_trait('order', 'yours'), heads.set_trait('n_kv_heads', 2)]")
    press(widgets, "heads", "Home", "ArrowRight")
    agrees(widgets, "heads", head=1)
    press(widgets, "heads", "End", "ArrowUp")
    agrees(widgets, "heads", head=7, n_kv_heads=4)
    press(widgets, "heads", "ArrowDown", "ArrowLeft", "ArrowLeft")
    agrees(widgets, "heads", head=5, n_kv_heads=2)


def test_memory_by_mouse(widgets: LessonPage) -> None:
    slide(widgets, "memory", "sequences", 0.6)
    agrees(widgets, "memory", batch=64, cache_bytes=64 * 8192 * 131_072)
    point(widgets, "memory", 8)
    agrees(widgets, "memory", seq_len=32_768)
    said(widgets.view("memory", 1), "196.45 GiB too much.")
    widgets.view("memory").locator("select").nth(1).select_option("B200 (HGX)")
    widgets.view("memory").locator("select").nth(0).select_option("q4_0")
    agrees(widgets, "memory", device="B200 (HGX)", dtype="q4_0", per_token=36_864)


def test_memory_by_keyboard(widgets: LessonPage) -> None:
    press(widgets, "memory", "Home")
    agrees(widgets, "memory", seq_len=128)
    press(widgets, "memory", "ArrowRight", "ArrowRight", "ArrowUp")
    agrees(widgets, "memory", seq_len=512, batch=128)
    widgets.view("memory").locator("label", has_text="layers").locator("input").focus()
    widgets.page.keyboard.press("End")
    agrees(widgets, "memory", n_layers=126)


def test_a_value_between_the_options_is_shown_as_it_is(widgets: LessonPage) -> None:
    widgets.python("memory.set_trait('seq_len', 5000)")
    agrees(widgets, "memory", seq_len=5000)
    press(widgets, "memory", "ArrowRight")
    agrees(widgets, "memory", seq_len=8192)


def test_roofline_by_mouse_and_keyboard(widgets: LessonPage) -> None:
    slide(widgets, "roofline", "sequences", 1.0)
    agrees(widgets, "roofline", batch=1024)
    said(widgets.view("roofline", 1), "It does not fit")
    widgets.view("roofline").locator("select").select_option("L4")
    press(widgets, "roofline", "End", "ArrowLeft", "ArrowDown")
    agrees(widgets, "roofline", device="L4", seq_len=65_536, batch=512)
    press(widgets, "roofline", "Home")
    agrees(widgets, "roofline", seq_len=128)


def test_drift_by_mouse_and_keyboard(widgets: LessonPage) -> None:
    point(widgets, "drift", 5)
    agrees(widgets, "drift", step=5)
    said(widgets.view("drift", 1), "Step 5 of 24, distance from the uncached run: position 0 at each step 1.01;")
    widgets.view("drift").get_by_role("button", name="Back").click()
    agrees(widgets, "drift", step=4)
    widgets.view("drift").locator("select").select_option("logarithmic")
    press(widgets, "drift", "End")
    agrees(widgets, "drift", step=23, scale="logarithmic")
    press(widgets, "drift", "Home", " ")
    until(lambda: widgets.python("drift.step") >= 2, "it does not play", 6)
    press(widgets, "drift", " ")
    widgets.page.wait_for_timeout(100)
    paused = widgets.python("drift.step")
    widgets.page.wait_for_timeout(1500)
    agrees(widgets, "drift", step=paused)


def test_blocks_by_mouse_and_keyboard(widgets: LessonPage) -> None:
    press(widgets, "blocks", "Home")
    agrees(widgets, "blocks", step=0)
    for step in (1, 2, 3):
        widgets.view("blocks").get_by_role("button", name="Step").click()
        agrees(widgets, "blocks", step=step)
    press(widgets, "blocks", "ArrowRight", "ArrowRight")
    agrees(widgets, "blocks", step=5)
    said(widgets.view("blocks"), "WRONG: block 1 is written while a and b hold it: copy it first.")
    press(widgets, "blocks", "End", "ArrowLeft")
    agrees(widgets, "blocks", step=6)
    press(widgets, "blocks", "ArrowUp", " ")  # plays from the start once the end is reached
    until(lambda: widgets.python("blocks.step") == 2, "it does not play", 6)
    press(widgets, "blocks", " ")


def test_a_resting_pointer_undoes_nothing(widgets: LessonPage) -> None:
    """A redraw puts new shapes under the pointer; they must not take it for a movement."""
    point(widgets, "drift", 7)
    agrees(widgets, "drift", step=7)
    widgets.python("drift.set_trait('step', 2)")
    widgets.page.wait_for_timeout(400)
    agrees(widgets, "drift", step=2)
    cell(widgets.view("mask"), 0, 2, widgets.python("mask.n_total")).hover()
    widgets.expect("mask.column", 2)
    widgets.python("[mask.set_trait('column', 0), mask.set_trait('n_total', 9)]")
    widgets.page.wait_for_timeout(400)
    widgets.expect("mask.column", 0)


# Every widget


def test_tab_reaches_every_stage(widgets: LessonPage) -> None:
    """The last control, then Tab: the focus is on the drawing, and it can be seen."""
    for name in SHOWN[1:]:
        view = widgets.view(name)
        controls = view.locator(".kvlab-bar :is(input, select, button)")
        if not controls.count():
            continue
        controls.last.focus()
        widgets.page.keyboard.press("Tab")
        stage = view.locator(".kvlab-stage")
        assert stage.evaluate("e => e === document.activeElement"), f"{name}: Tab misses the drawing"
        assert stage.evaluate("e => getComputedStyle(e).outlineStyle") == "solid", f"{name}: the focus cannot be seen"


@pytest.mark.parametrize(("name", "trait"), [("growth", "step"), ("blocks", "step"), ("drift", "step")])
def test_nothing_jumps_while_a_run_plays(widgets: LessonPage, name: str, trait: str) -> None:
    view, heights = widgets.view(name), set()
    last = {"growth": 4, "blocks": 7, "drift": 23}[name]
    for step in range(last + 1):
        widgets.python(f"{name}.set_trait('{trait}', {step})")
        until(lambda s=step: view.locator("input[type=range]").input_value() == str(s), "not drawn", 5)
        heights.add(round(view.bounding_box()["height"]))
    assert len(heights) == 1


@pytest.mark.parametrize("width", ["100", "50"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pictures(widgets: LessonPage, theme: str, width: str) -> None:
    widgets.use(theme, width)
    widgets.python("growth.set_trait('step', 3)")
    for name in SHOWN:
        view = widgets.view(name)
        assert view.evaluate("e => e.scrollWidth <= e.parentElement.clientWidth + 1"), f"{name} is wider than its cell"
        widgets.picture(view, f"{name}-{theme}-{width}")


def test_a_deleted_view_frees_its_handlers(widgets: LessonPage) -> None:
    """A view that goes with its cell, and then all views of a widget that Python closes, leave no handler behind."""
    page, before = widgets.page, widgets.n_key_handlers()
    cells = page.locator(".jp-CodeCell")
    cells.last.locator(".jp-InputPrompt").click()
    page.keyboard.press("Escape")
    page.keyboard.press("d")
    page.keyboard.press("d")
    until(lambda: widgets.n_key_handlers() == before - 1, "the deleted cell's handler stays", 5)
    widgets.python("mask.close()")
    until(lambda: widgets.n_key_handlers() == before - 3, "the closed widget's handlers stay", 5)

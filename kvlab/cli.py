"""The command line: `kvlab check`, `exercises`, `hint`, `progress`, `size`, `bench`."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    help="The KV cache, built by hand: check exercises, and price the cache of a model, from a terminal.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@app.command()
def check(
    name: Annotated[str, typer.Argument(help="The exercise, such as offset_mask.")],
    files: Annotated[list[Path], typer.Argument(help="Python files or notebooks that define it.")],
    as_json: AsJson = False,
    limit_s: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds that one file may take.")] = 10.0,
) -> None:
    """Check one exercise in one or several files; exit 0 only if all passed, 1 if any did not, 2 for wrong usage."""
    from kvlab.checks.files import check_files

    passed = True
    for answer in check_files(name, files, limit_s):
        passed &= answer["verdict"] == "passed"
        if as_json:
            print(json.dumps(answer), flush=True)
        else:
            print(f"{answer['file']}\n{answer['message']}" if len(files) > 1 else answer["message"], flush=True)
    raise typer.Exit(0 if passed else 1)


@app.command()
def exercises(as_json: AsJson = False) -> None:
    """List every exercise: id, lesson, signature, points."""
    from kvlab.checks.registry import cards

    fields = ("id", "lesson", "signature", "points")
    rows = [{f: getattr(c, f) for f in fields} for c in cards().values()]
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        print(f"{row['lesson']:<20} {row['points']:>2}  {row['signature']}")


@app.command()
def hint(
    name: Annotated[str, typer.Argument(help="The exercise, such as offset_mask.")],
    step: Annotated[int | None, typer.Option(min=1, help="Print only this step; all of them when left out.")] = None,
) -> None:
    """Print the hints for an exercise, from a nudge to nearly there."""
    from kvlab.checks.registry import UnknownExercise, card

    try:
        hints = card(name).hints
    except UnknownExercise as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    if step is not None and step > len(hints):
        typer.echo(f"{name} has {len(hints)} hints, there is no step {step}", err=True)
        raise typer.Exit(1)
    for i, text in enumerate(hints, start=1):
        if step in (None, i):
            print(f"{name}, hint {i} of {len(hints)}: {text}")


@app.command()
def progress(
    folder: Annotated[
        Path | None, typer.Argument(help="Where the exercise notebooks are: exercises/, or here.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what is passed in the exercise notebooks of a folder."""
    from kvlab.checks.files import Unusable, progress_rows, progress_table

    try:
        rows = progress_rows(folder or (Path("exercises") if Path("exercises").is_dir() else Path()))
    except Unusable as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    print(json.dumps(rows, indent=1) if as_json else progress_table(rows))


@app.command()
def size(
    configs: Annotated[list[Path], typer.Argument(help="config.json files, or directories of them.")],
    tokens: Annotated[int, typer.Option(min=0, help="Tokens in each sequence.")],
    sequences: Annotated[int, typer.Option(min=1, help="Sequences, each with a cache of its own.")] = 1,
    k_dtype: Annotated[str, typer.Option(help="Format of the keys: f16, bf16, f32, fp8, q8_0, q4_0, ...")] = "f16",
    v_dtype: Annotated[str, typer.Option(help="Format of the values.")] = "f16",
    mla: Annotated[str, typer.Option(help="What latent attention stores: latent or expanded.")] = "latent",
    gpu: Annotated[str | None, typer.Option(help="Memory of one GPU, such as 80GiB: say what fits.")] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="Bytes of the weights, or auto: total_size of the safetensors index beside the config."),
    ] = None,
    tp: Annotated[int, typer.Option(min=1, help="GPUs that share the KV heads (tensor parallel).")] = 1,
    encoder_tokens: Annotated[int | None, typer.Option(min=0, help="Tokens that cross-attention sees.")] = None,
    explained: Annotated[
        bool | None,
        typer.Option(
            "--explain/--table",
            help="Say where every factor comes from (for one config in a terminal), or one line a config.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Price the cache of real models from their config.json; exit 0 only if all were priced, 2 for wrong usage."""
    from kvlab.sizes import report

    request = report.Request(
        *(tokens, sequences, _option("--k-dtype", report.dtype_name, k_dtype)),
        _option("--v-dtype", report.dtype_name, v_dtype),
        *(_option("--mla", report.mla_name, mla), tp, encoder_tokens),
        _option("--gpu", report.parse_bytes, gpu),
        weights if weights == "auto" else _option("--weights", report.parse_bytes, weights),
    )
    if gpu is not None and weights is None:
        raise typer.BadParameter("--gpu needs --weights BYTES or --weights auto: the cache shares the GPU with them")
    answers = []
    try:
        for path in report.config_files(configs):
            answers.append(report.answer(path, request))
            if as_json:
                print(report.to_json(answers[-1]), flush=True)
    except ValueError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    if not as_json:
        one = len(answers) == 1 and sys.stdout.isatty()
        if any(found.need for found in answers):
            print(report.render(answers, one if explained is None else explained))
        for line in report.remarks(answers, one if explained is None else explained):
            typer.echo(line, err=True)
    raise typer.Exit(0 if all(found.need for found in answers) else 1)


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    options_metavar="[decode|context|...] [OPTIONS]",
)
def bench(context: typer.Context) -> None:
    """Measure this machine; decode against Hugging Face and llama.cpp with `kvlab bench decode`; needs torch."""
    from kvlab.bench import main  # reads its options itself: it also runs where there is no typer

    raise typer.Exit(main(context.args, prog="kvlab bench"))


def _option(name: str, read: Callable[[str], Any], text: str | None) -> Any:
    """An option's value as `read` makes it, or a usage error that names the option."""
    try:
        return None if text is None else read(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=name) from None


if __name__ == "__main__":
    app()

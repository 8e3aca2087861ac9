"""The command line: `kvlab check`, `exercises`, `hint`, `progress`."""

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="The KV cache, built by hand: check exercises from a terminal.",
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
    limit_s: Annotated[float, typer.Option(min=0.1, help="Seconds that one file may take.")] = 10.0,
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
    folder: Annotated[Path, typer.Argument(help="Where the exercise notebooks are.")] = Path("exercises"),
    as_json: AsJson = False,
) -> None:
    """Show what is passed in the exercise notebooks of a folder."""
    from kvlab.checks.files import Unusable, progress_rows, progress_table

    try:
        rows = progress_rows(folder)
    except Unusable as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    print(json.dumps(rows, indent=1) if as_json else progress_table(rows))


if __name__ == "__main__":
    app()

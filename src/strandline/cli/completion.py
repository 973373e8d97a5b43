"""`strandline completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from strandline.cli.screen import echo


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    \b
    echo 'eval "$(strandline completion bash)"' >> ~/.bashrc
    echo 'eval "$(strandline completion zsh)"' >> ~/.zshrc
    strandline completion fish > ~/.config/fish/completions/strandline.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    root = context.find_root()
    echo(kind(root.command, {}, "strandline", "_STRANDLINE_COMPLETE").source())

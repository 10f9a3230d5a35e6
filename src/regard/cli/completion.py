"""regard completion"""

import click
from click.shell_completion import CompletionItem, get_completion_class

SHELLS = ("bash", "zsh", "fish")

EXAMPLES = """\b
Examples:
  regard completion bash > ~/.local/share/bash-completion/completions/regard
  regard completion zsh > "${fpath[1]}/_regard"
  regard completion fish > ~/.config/fish/completions/regard.fish

\b
For the current shell only:
  eval "$(regard completion bash)"
  eval "$(regard completion zsh)"
  regard completion fish | source"""


class PathOrText(click.types.StringParamType):
    """A text for which a shell suggests files: most arguments are runs, presets or files."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        del ctx, param
        return [CompletionItem(incomplete, type="file")]


def suggest_files(command: click.Command) -> None:
    """Let a shell suggest files for the text arguments of a command, and of the subcommands of a group."""
    for parameter in command.params:
        if parameter.type is click.STRING:
            parameter.type = PathOrText()
    for subcommand in command.commands.values() if isinstance(command, click.Group) else ():
        suggest_files(subcommand)


@click.command(epilog=EXAMPLES)
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print a script that completes commands, options and file names of regard with the Tab key.

    SHELL is bash (4.4 or newer), zsh or fish. Write the script to the folder in which the shell looks for
    completions, and start a new shell.
    """
    completion = get_completion_class(shell)
    assert completion is not None
    root = click.get_current_context().find_root().command
    click.echo(completion(root, {}, "regard", "_REGARD_COMPLETE").source())

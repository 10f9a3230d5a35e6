"""Upload of exported models to the Hugging Face Hub."""

from pathlib import Path
from typing import Any

from regard.errors import ConfigError, RegardError, ResourceError

_LOGIN = "Log in with `hf auth login`, or set HF_TOKEN to a token with write access"


def check_repository(repository: str) -> None:
    """Raise ConfigError if huggingface_hub is not installed, or if this cannot be the name of a repository."""
    hub = _import_hub()
    try:
        hub.utils.validate_repo_id(repository)
    except hub.errors.HFValidationError as error:
        raise ConfigError(
            f"--push {repository}: {str(error).splitlines()[0].rstrip('.')}. Use USER/NAME or ORGANIZATION/NAME."
        ) from None


def push_folder(folder: Path, repository: str, *, private: bool = False) -> str:
    """Upload the files of a folder to a repository in one commit, and return the URL of the repository.

    The repository is created if it does not exist, and `private` applies only then. The token is that of the
    environment variable HF_TOKEN or of `hf auth login`. Raise ConfigError if the token is missing or may not write to
    the repository, and ResourceError if the upload fails for another reason.
    """
    hub = _import_hub()
    api = hub.HfApi()
    try:
        # None is the default of an organization, which can be private.
        url = api.create_repo(repository, private=private or None, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message="Upload a model exported by regard")
    except hub.errors.HfHubHTTPError as error:
        failure = _describe_response(error, repository)
    except Exception as error:  # the HTTP libraries of different versions raise their own types
        failure = ResourceError(f"{api.endpoint} cannot be reached ({error}). Check the network")
    else:
        return str(url)
    raise type(failure)(
        f"{failure}; then run `hf upload {repository} {folder}`. The model in {folder} is complete, but not uploaded."
    )


def _describe_response(error: Any, repository: str) -> RegardError:
    status, message = error.response.status_code, error.server_message or error.response.reason_phrase
    if status == 401:
        return ConfigError(f"The Hub requires a valid token ({message}). {_LOGIN}")
    if status in {403, 404}:
        return ConfigError(f"The token does not allow writing to {repository} ({message}). Use one with write access")
    return ResourceError(f"The Hub answered with status {status} ({message}). Try again later")


def _import_hub() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError:
        raise ConfigError(
            "--push requires the package huggingface_hub, which is not installed. Run pip install 'regard[hub]'."
        ) from None
    return huggingface_hub

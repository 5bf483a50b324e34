"""Upload of a finished model to the Hugging Face hub, for those who ask for it; without that, nothing is sent anywhere."""

from __future__ import annotations

import shlex
from pathlib import Path

from huggingface_hub import HfApi, get_token, is_offline_mode
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from toolkit.config import RunConfig
from toolkit.errors import UploadError, UserError


def check_push(config: RunConfig) -> None:
    """What an upload needs and can be seen without a network, before hours are spent. Raises UserError."""
    if not config.push_to_hub:
        return
    if config.hub_model_id is None:
        raise UserError("push_to_hub: set hub_model_id to the repository to upload to, as NAMESPACE/NAME")
    try:
        validate_repo_id(config.hub_model_id)
    except HFValidationError as error:
        raise UserError(f"hub_model_id: {' '.join(str(error).split())}") from None
    if is_offline_mode():
        raise UserError("push_to_hub: HF_HUB_OFFLINE forbids it; unset that, or push_to_hub")
    if get_token() is None:
        raise UserError("push_to_hub: there is no token; run `hf auth login`, or set HF_TOKEN")


def upload(config: RunConfig, folder: Path, api: HfApi | None = None) -> str:
    """Send the model in `folder` to `config.hub_model_id`, which is created if it is not there; returns its address.

    Raises UploadError, which says how to do it by hand: nothing that fails here may cost the run its model.
    """
    name, api = str(config.hub_model_id), api or HfApi()
    private = " --private" if config.hub_private_repo else ""
    by_hand = f"the model is in {folder}; to upload it: hf upload {name} {shlex.quote(str(folder))} .{private}"
    try:
        made = api.create_repo(name, private=config.hub_private_repo, exist_ok=True)
        public = config.hub_private_repo and api.repo_info(made.repo_id).private is False
        if not public:
            api.upload_folder(repo_id=made.repo_id, folder_path=folder, commit_message="Model of a finished run")
    except Exception as error:  # of the network, the hub or the disk: no library says which kinds there are
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UploadError(f"push_to_hub: {name}: {reason}; {by_hand}") from error
    if public:  # one that was there before
        raise UploadError(
            f"push_to_hub: {name} is a public repository and hub_private_repo is true, so nothing was uploaded; {by_hand}"
        )
    return str(made)

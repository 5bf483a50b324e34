"""The end of a run: all processes meet, and the main one uploads the model where that is wished."""

from __future__ import annotations

from toolkit.hub import upload
from toolkit.start import Run


def publish(run: Run) -> None:
    """Meet all other processes; with `push_to_hub`, upload OUTPUT/model. Raises UploadError on the main process."""
    if not run.config.push_to_hub:
        run.layout.wait()
        return
    # An upload may take longer than processes wait for each other, and stands still for the watchdog. The run is complete
    # and recorded as such; nothing is left that processes must do together.
    run.watch.stop()
    run.layout.part()
    if run.layout.is_main:
        run.say(f"uploading {run.folder.model} to {run.config.hub_model_id}")
        run.say(f"uploaded: {upload(run.config, run.folder.model)}")

"""Generates the types of the API from openapi.yaml, if the checkout has it.

A source distribution has no openapi.yaml and contains the generated types.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Types(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        here = Path(self.root)
        described = here.parent.parent / "openapi.yaml"
        made = here / "src" / "sojourn_client" / "models.py"
        if not described.exists():
            if not made.exists():
                raise FileNotFoundError(f"{described} is needed to generate the types")
            return
        command = [sys.executable, "-m", "datamodel_code_generator"]
        command += ["--input", str(described), "--input-file-type", "openapi", "--output", str(made)]
        command += ["--output-model-type", "typing.TypedDict", "--target-python-version", "3.11"]
        command += ["--use-standard-collections", "--use-union-operator", "--use-schema-description"]
        command += ["--disable-timestamp", "--formatters", "builtin"]
        subprocess.run(command, check=True)

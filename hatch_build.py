"""Builds the C code when the package is installed. Without a compiler the package is installed all the same."""

import importlib.util
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeCode(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the libraries of native/build.py beside the sources, from where the wheel takes them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, and name the platform in the wheel's name."""
        spec = importlib.util.spec_from_file_location("build", Path(self.root) / "src/fedgbo/native/build.py")
        if spec is None or spec.loader is None:
            raise FileNotFoundError("src/fedgbo/native/build.py")
        module = importlib.util.module_from_spec(spec)  # not `import fedgbo`: torch is not there yet
        spec.loader.exec_module(module)
        try:
            module.build()
        except module.BuildError as error:
            self.app.display_warning(f"fedgbo is installed without C code, at torch's speed: {error}")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

"""What trifold needs of its installation: the declared packages with their ranges, and the command
that installs those of an extra.

The distribution is `trifold-transformer`; the package `trifold` of the Python package index belongs
to another project. Commands name the packages themselves, so that they install nothing else,
whether trifold comes from an index or from a clone.
"""

import shutil
import sys
import tomllib
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from shlex import quote

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

DISTRIBUTION = "trifold-transformer"
PROJECT = Path(__file__).parents[2] / "pyproject.toml"  # of a clone
DEVELOPMENT = ("dev", "docs")  # the extras of contributors


@cache
def _declared() -> tuple[str, dict[str, list[str]]]:
    """The range of Python versions, and by extra the lines of its packages; "" has those that are
    always needed. Both are empty if trifold is neither installed nor in a clone.
    """
    # The metadata of an editable install are those of the day of the installation.
    if PROJECT.is_file():
        project = tomllib.loads(PROJECT.read_text("utf-8")).get("project", {})
        if project.get("name") == DISTRIBUTION:
            extras = {"": project["dependencies"], **project["optional-dependencies"]}
            return project["requires-python"], extras
    try:
        found = metadata.metadata(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "", {}
    lines = found.get_all("Requires-Dist") or []
    extras = {"": [line for line in lines if "extra ==" not in line]}
    for extra in found.get_all("Provides-Extra") or []:
        ends = (f'extra == "{extra}"', f"extra == '{extra}'")
        extras[extra] = [line for line in lines if line.endswith(ends)]
    return found["Requires-Python"], extras


def python_range() -> SpecifierSet:
    """The versions of Python that trifold supports."""
    return SpecifierSet(_declared()[0])


def extras() -> list[str]:
    """The names of the extras for users."""
    return [name for name in _declared()[1] if name not in ("", *DEVELOPMENT)]


def requirements(extra: str = "") -> list[Requirement]:
    """The packages that trifold, or one of its extras, needs on this system."""
    found = [Requirement(line) for line in _declared()[1].get(extra, [])]
    return [one for one in found if one.marker is None or one.marker.evaluate({"extra": extra})]


def installed_version(package: str) -> str | None:
    """The version of an installed package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def is_satisfied(requirement: Requirement) -> bool:
    """Whether a package is installed in a version of the range."""
    version = installed_version(requirement.name)
    return version is not None and requirement.specifier.contains(version, prereleases=True)


def install_command(extra: str = "") -> str:
    """The command that installs the packages of an extra, or those that are always needed, into
    the environment of this process.
    """
    found = requirements(extra) or [Requirement(line) for line in _declared()[1].get(extra, [])]
    return pip_command("install", *(f"{one.name}{one.specifier}" for one in found))


def pip_command(action: str, *packages: str) -> str:
    """The command that installs or uninstalls packages in the environment of this process.

    action: `install` or `uninstall`. Packages with a range or an extra are quoted.
    """
    words = [name if name.isidentifier() else f'"{name}"' for name in packages]
    return " ".join([_installer(action), *words])


def _installer(action: str) -> str:
    """`pip` if this is the pip of this environment, or what reaches the environment from outside.
    Environments that uv has made have no pip.
    """
    python = quote(sys.executable)
    if find_spec("pip") is None and shutil.which("uv") is not None:
        return f"uv pip {action} --python {python}"
    pip = shutil.which("pip")
    if pip is not None and Path(pip).parent == Path(sys.executable).parent:
        return f"pip {action}"
    return f"{python} -m pip {action}"

"""Chroma's own wal3 as a program for tests: its sources, but for replication, over a directory.

    python tests/wal3/build.py run CHROMA COMMAND [ARGUMENT …]     # build, then run the command
    python tests/wal3/build.py build CHROMA                        # only build

CHROMA is a checkout of Chroma's repository, or a git directory with its history, of which HEAD is taken.
Its ``rust/wal3`` and the crate of its errors are copied into ``.wal3``, beside crates of ours (``rust``
here) that stand in for its stores, for Spanner and for what else its half for object stores names and
does not need. All else comes from the index, in the versions of Chroma's lock file. The first build takes
some minutes, others some seconds.

The command finds the program in WALSTORE_WAL3, wal3's own tests in WALSTORE_WAL3_TESTS, and the copied
sources in WALSTORE_WAL3_SOURCES.

Exit status: the command's; 77 if nothing can be built here; 1 if wal3 does not compile, or is not what the
edits below are for any more. It says why.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

DRIVER: Final = "WALSTORE_WAL3"
TESTS: Final = "WALSTORE_WAL3_TESTS"
SOURCES: Final = "WALSTORE_WAL3_SOURCES"

ROOT: Final = Path(__file__).parents[2]
OURS: Final = Path(__file__).parent / "rust"
CACHE: Final = ROOT / ".wal3"
WORKSPACE: Final = CACHE / "workspace"

CANNOT: Final = 77
FAILED: Final = 1

WANTED: Final = ("Cargo.toml", "Cargo.lock", "rust/error", "rust/wal3")
"""What is taken from Chroma's repository."""

REPLACED: Final[dict[str, dict[str, Any]]] = {
    "chroma-config": {"path": "config"},
    "chroma-error": {"path": "error", "features": ["tonic"]},
    "chroma-storage": {"path": "storage"},
    "chroma-types": {"path": "types"},
    "google-cloud-gax": {"path": "gax"},
    "google-cloud-spanner": {"path": "spanner"},
    "wal3": {"path": "wal3"},
}
"""The crates that do not come from the index; all of them are members of the workspace."""

HEADING: Final = '#![recursion_limit = "256"]\n#![allow(warnings)]\n'
"""Of the program of wal3's tests; what is left unused there is what was cut."""

PROFILE: Final = "\n[profile.dev]\ndebug = 0\nincremental = false\n"

Files = dict[str, bytes]
"""Contents by their paths, which have slashes and no beginning."""


class CannotBuildError(Exception):
    """Something that is needed is not on this machine; the text says what."""


class ChangedError(Exception):
    """wal3 is not what this script was written for; the text says where."""


@dataclass(frozen=True)
class Edit:
    """A change of one file of wal3: what matches the pattern is replaced everywhere."""

    path: str
    pattern: str
    replacement: str
    what: str

    def apply(self, files: Files) -> None:
        """Change the file; ChangedError if there is nothing to change."""
        text = files.get(self.path, b"").decode()
        changed, count = re.subn(self.pattern, self.replacement, text, flags=re.DOTALL)
        if not count:
            raise ChangedError(
                f"wal3 has changed: {self.what} is not found in {self.path}; mend EDITS in {__file__}"
            )
        files[self.path] = changed.encode()


EDITS: Final = (
    Edit(
        "src/lib.rs",
        r"pub use interfaces::repl::\{.*?\};",
        "pub use interfaces::repl::StorageWrapper;",
        "what lib.rs exports of the replicated half",
    ),
    Edit(
        "tests/common.rs",
        r"/+ Repl Utilities /+\n.*?(?=/{20,} Condition /+)",
        "",
        "the part of the tests' helpers for replicated logs",
    ),
    Edit(
        "tests/common.rs",
        r"use (chroma_config|google_cloud_\w+)::[^;]*;\n",
        "",
        "the helpers' imports for replicated logs",
    ),
    Edit(
        "tests/common.rs",
        r"\bReplicatedFragmentOptions, ",
        "",
        "the helpers' import of the options of replicated logs",
    ),
)


def sources(chroma: Path) -> Files:
    """Return what is taken from Chroma's repository, a checkout or a git directory."""
    if (chroma / "rust" / "wal3" / "Cargo.toml").is_file():
        found = {}
        for wanted in WANTED:
            each = chroma / wanted
            for path in sorted(each.rglob("*")) if each.is_dir() else [each]:
                if path.is_file() and "target" not in path.relative_to(chroma).parts:
                    found[path.relative_to(chroma).as_posix()] = path.read_bytes()
        return found
    git = shutil.which("git")
    if git is None:
        raise CannotBuildError(f"{chroma} is no checkout of Chroma, and there is no git")
    archive = subprocess.run(
        [git, "-C", str(chroma), "archive", "--format=tar", "HEAD", *WANTED],
        capture_output=True,
        check=False,
    )
    if archive.returncode:
        reason = archive.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise CannotBuildError(
            f"{chroma} is neither a checkout nor a git directory of Chroma: {' '.join(reason)}"
        )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        return {
            member.name: content.read()
            for member in tar
            if member.isfile() and (content := tar.extractfile(member)) is not None
        }


def workspace(chroma: Files, ours: Files) -> Files:
    """Return a workspace that cargo can build."""
    files = {path: data for path, data in ours.items() if not path.startswith("wal3/")}
    files |= _below(chroma, "rust/error/", "error/")
    files |= {f"wal3/{path}": data for path, data in _wal3(chroma, ours).items()}
    manifests = [data for path, data in files.items() if path.endswith("/Cargo.toml")]
    files["Cargo.toml"] = _workspace_manifest(chroma, manifests).encode()
    files["Cargo.lock"] = chroma["Cargo.lock"]
    return files


def _wal3(chroma: Files, ours: Files) -> Files:
    """Return its half for object stores, and its tests as one program."""
    everything = _below(chroma, "rust/wal3/", "")
    kept = ("Cargo.toml", "README.md", "src/", "tests/")
    cut = ("src/bin/", "src/interfaces/repl/", "tests/repl_")
    files = {
        path: data
        for path, data in everything.items()
        if path.startswith(kept) and not path.startswith(cut)
    }
    files["src/interfaces/repl/mod.rs"] = ours["wal3/repl.rs"]
    for edit in EDITS:
        edit.apply(files)
    return {path: data for path, data in files.items() if "tests/" not in path} | _tests(files)


def _tests(files: Files) -> Files:
    """Return one program of all tests, so that there is one thing to link; each has its helpers beside it."""
    inputs = _below(files, "tests/", "")
    names = [path.removesuffix(".rs") for path in inputs if re.fullmatch(r"s3_\w+\.rs", path)]
    helpers = {path: data for path, data in inputs.items() if not path.startswith(tuple(names))}
    answer = {"tests/all/main.rs": (HEADING + "".join(f"mod {name};\n" for name in names)).encode()}
    for name in names:
        answer[f"tests/all/{name}/mod.rs"] = inputs[f"{name}.rs"]
        for path, data in helpers.items():
            answer[f"tests/all/{name}/{path}"] = data
    # Some of the library's own tests, which are not built, and ours read these.
    answer |= {f"tests/{path}": data for path, data in inputs.items() if not path.endswith(".rs")}
    return answer


def _below(files: Files, prefix: str, instead: str) -> Files:
    return {
        instead + path.removeprefix(prefix): data
        for path, data in files.items()
        if path.startswith(prefix)
    }


def _workspace_manifest(chroma: Files, manifests: list[bytes]) -> str:
    theirs = tomllib.loads(chroma["Cargo.toml"].decode())["workspace"]["dependencies"]
    needed = set()
    for manifest in manifests:
        crate = tomllib.loads(manifest.decode())
        for table in ("dependencies", "dev-dependencies"):
            for name, wish in crate.get(table, {}).items():
                if isinstance(wish, dict) and wish.get("workspace"):
                    needed.add(name)
    missing = sorted(needed - REPLACED.keys() - theirs.keys())
    if missing:
        raise ChangedError(f"Chroma's workspace no longer names {', '.join(missing)}")
    lines = ["[workspace]", 'resolver = "2"']
    members = sorted({each["path"] for each in REPLACED.values()} | {"driver"})
    lines += [f"members = {_toml(members)}", "", "[workspace.dependencies]"]
    for name in sorted(needed):
        wish = REPLACED.get(name) or theirs[name]
        if name == "tonic":
            # wal3 names its status codes; the rest is a web server.
            wish = {"version": _version(wish), "default-features": False}
        lines.append(f"{name} = {_toml(wish)}")
    return "\n".join(lines) + PROFILE


def _version(wish: str | dict[str, Any]) -> str:
    return wish if isinstance(wish, str) else str(wish["version"])


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(each) for each in value) + "]"
    return json.dumps(value)


def lay_out(files: Files, directory: Path) -> None:
    """Make a directory hold just these files. What is there already keeps its time, by which cargo goes."""
    for path, data in files.items():
        target = directory / path
        # cargo adapts the lock file to the workspace.
        is_there = target.is_file() and (path == "Cargo.lock" or target.read_bytes() == data)
        if not is_there:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    for target in directory.rglob("*"):
        if target.is_file() and target.relative_to(directory).as_posix() not in files:
            target.unlink()


def build(chroma: Path) -> dict[str, str]:
    """Return the environment that tests need, with the paths of what was built."""
    cargo = shutil.which("cargo")
    if cargo is None:
        raise CannotBuildError("there is no cargo; https://rustup.rs has it, 1.89 or newer")
    ours = {
        path.relative_to(OURS).as_posix(): path.read_bytes()
        for path in OURS.rglob("*")
        if path.is_file()
    }
    lay_out(workspace(sources(chroma), ours), WORKSPACE)
    command = [cargo, "build", "--message-format=json-render-diagnostics"]
    command += ["--package=wal3", "--package=wal3-driver", "--bin=wal3-driver", "--test=all"]
    environment = {**os.environ, "CARGO_TARGET_DIR": str(CACHE / "target")}
    done = subprocess.run(
        command, cwd=WORKSPACE, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise ChangedError("wal3 does not compile, see above")
    made = {}
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable"):
            made[message["target"]["name"]] = message["executable"]
    return {DRIVER: made["wal3-driver"], TESTS: made["all"], SOURCES: str(WORKSPACE / "wal3")}


def main() -> int:
    """Do what the command line says."""
    match sys.argv[1:]:
        case ["build", chroma]:
            command = []
        case ["run", chroma, *command] if command:
            pass
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    try:
        if not chroma:
            raise CannotBuildError("name a checkout of Chroma: make test-wal3 CHROMA=path")
        began = time.monotonic()
        made = build(Path(chroma).absolute())
        print(f"wal3 is built after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    except CannotBuildError as error:
        print(f"no wal3 here: {error}", file=sys.stderr)
        return CANNOT
    except ChangedError as error:
        print(error, file=sys.stderr)
        return FAILED
    if not command:
        return 0
    return subprocess.run(command, env={**os.environ, **made}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

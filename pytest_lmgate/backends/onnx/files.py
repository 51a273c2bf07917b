"""Which files of a folder are an ONNX model: the .onnx file, what lies beside it, and the folder of its config."""

from __future__ import annotations

__all__ = ["OnnxFiles"]

from dataclasses import dataclass
from pathlib import Path

from pytest_lmgate.backends.base import Entry
from pytest_lmgate.backends.hf.models.tokenizer import WEIGHTS
from pytest_lmgate.data.corpora.git_lfs import is_lfs_pointer, pull_hint
from pytest_lmgate.errors import ModelError
from pytest_lmgate.identity.files import checkpoint_files

# Where a repository of the hub keeps its exports, below its config and tokenizer.
_BELOW = "onnx"


@dataclass(frozen=True)
class OnnxFiles:
    """The files of one model.

    Attributes:
        model: The .onnx file.
        folder: Where its config.json is, and its tokenizer unless the entry names another.
    """

    model: Path
    folder: Path

    @classmethod
    def of(cls, entry: Entry) -> OnnxFiles:
        """Find the files of an entry's path, which is an .onnx file or a folder with one.

        Raises:
            ModelError: There is no such file, or more than one and the entry does not say which.
        """
        name, wanted = entry.name, entry.spec.load.get("file_name")
        if entry.spec.path is None:
            raise ModelError(f"model {name!r}: expected path: of a folder that optimum exported, or of an .onnx file")
        path = entry.path(entry.spec.path)
        if path.suffix == ".onnx" and not path.is_dir():
            if wanted is not None:
                raise ModelError(f"model {name!r}: path: names a file, {path}: leave load.file_name out")
            is_below = path.parent.name == _BELOW and not (path.parent / "config.json").is_file()
            return cls(path, path.parents[1 if is_below else 0])._checked(name)
        if not path.is_dir():
            raise ModelError(f"model {name!r}: no such folder: {path}; check models.{name}.path")
        if wanted is not None:
            return cls(path / wanted, path)._checked(name)
        found = sorted(path.glob("*.onnx")) or sorted(path.glob(f"{_BELOW}/*.onnx"))
        if not found:
            raise ModelError(
                f"model {name!r}: no .onnx file in {path}: expected a folder made by optimum-cli export onnx"
            )
        if len(found) > 1:
            names = ", ".join(file.relative_to(path).as_posix() for file in found)
            raise ModelError(
                f"model {name!r}: {path} has several .onnx files ({names}): say which, as in "
                f"load: {{file_name: {found[0].relative_to(path).as_posix()}}}"
            )
        return cls(found[0], path)._checked(name)

    @property
    def weight_bytes(self) -> int:
        """Size of the .onnx file and of the data beside it."""
        parts = self.model.parent.glob(f"{self.model.name}*")
        return sum(path.stat().st_size for path in parts if path.is_file())

    def by_name(self) -> dict[str, Path]:
        """Return every file that can change a number, by its name in an address.

        Weights outside of the .onnx file may have any name. onnxruntime makes sure that they lie in its folder or
        below, so all files there count, but no other .onnx file.
        """
        inner = self.model.parent
        beside = checkpoint_files(inner, everything=True).items()
        found = {f"onnx/{file}": path for file, path in beside if path.suffix != ".onnx" or path == self.model}
        if inner != self.folder:
            around = checkpoint_files(self.folder).items()
            found |= {f"model/{file}": path for file, path in around if path.suffix not in (".onnx", *WEIGHTS)}
        return found

    def _checked(self, name: str) -> OnnxFiles:
        if not self.model.is_file():
            raise ModelError(f"model {name!r}: no such file: {self.model}; check models.{name}")
        for path in self.by_name().values():
            if is_lfs_pointer(path):
                raise ModelError(f"model {name!r}: {pull_hint(path)}")
        return self

"""ONNX exports of a tiny float32 Llama."""

import shutil
from pathlib import Path

import pytest

from tests.engines.projects import write_float_model
from tests.models.tiny import made_once


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the model and exports of it; copy a folder before changing it."""

    def make(folder: Path) -> None:
        from tests.engines.onnx.exporting import move_weights_out, quantize, write_onnx

        source = folder / "float"
        model, _ = write_float_model(source)
        exact = write_onnx(folder / "past", source, model)
        write_onnx(folder / "plain", source, model, with_past=False)
        shutil.copytree(folder / "past", folder / "int8")
        quantize(exact, folder / "int8" / "model_quantized.onnx")
        (folder / "int8" / "model.onnx").unlink()
        shutil.copytree(folder / "past", folder / "data-beside")
        move_weights_out(folder / "data-beside" / "model.onnx")

    return made_once(tmp_path_factory.getbasetemp(), "onnx", make)

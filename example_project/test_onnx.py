"""The original as an ONNX export, which onnxruntime runs: `pip install 'pytest-lmgate[onnx]'`, or this is skipped."""

import pytest

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'pytest-lmgate[onnx]'")


@pytest.mark.ppl_max("onnx", "bulletins", 2.10)
@pytest.mark.no_regression("ppl", "onnx", "bulletins", "0.01%", against="float")
@pytest.mark.kl_max("onnx", "float", "bulletins", 0.000001)
@pytest.mark.top1_min("onnx", "float", "bulletins", 0.999)
def test_the_export_is_the_same_model():
    pass
